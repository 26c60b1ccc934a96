// The kinds of bugs that the simulator reports.
#ifndef CUDASIM_BUG_H_
#define CUDASIM_BUG_H_

namespace cudasim {

// A bug in the code that runs on the simulator.
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

}  // namespace cudasim

#endif  // CUDASIM_BUG_H_
