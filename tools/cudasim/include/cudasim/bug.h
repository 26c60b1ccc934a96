// The bugs that the simulator reports in the code that runs on it.
#ifndef CUDASIM_BUG_H_
#define CUDASIM_BUG_H_

#include <string>
#include <vector>

namespace cudasim {

enum class Bug {
  kBarrierDivergence,
  kMissingLanes,
  kOutOfBounds,
  kRace,
  kMissingWait,
  kMisaligned,
  kUninitialised,
  kHostAccess,
  kAssert,
  kTrap,
  kLeak,
  kOther,
};
const char* BugName(Bug bug);  // "barrier divergence"

// Prints the bug. CUDASIM_ON_BUG=abort (the default): aborts the process. =error: keeps the text
// for TakeReports().
void Report(Bug bug, const std::string& text);

// The texts of all reports since the last call. For tests.
std::vector<std::string> TakeReports();

}  // namespace cudasim

#endif  // CUDASIM_BUG_H_
