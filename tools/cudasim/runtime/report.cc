#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "cudasim/bug.h"
#include "cudasim/executor.h"

namespace cudasim {
namespace {

struct Reports {
  std::mutex mutex;
  std::vector<std::string> texts;
};

Reports& AllReports() {
  static auto* reports = new Reports;  // outlives the pool's threads
  return *reports;
}

}  // namespace

const char* BugName(Bug bug) {
  switch (bug) {
    case Bug::kBarrierDivergence:
      return "barrier divergence";
    case Bug::kMissingLanes:
      return "warp collective with missing lanes";
    case Bug::kOutOfBounds:
      return "access out of bounds";
    case Bug::kRace:
      return "data race";
    case Bug::kMissingWait:
      return "missing wait";
    case Bug::kMisaligned:
      return "misaligned access";
    case Bug::kUninitialised:
      return "uninitialised read";
    case Bug::kHostAccess:
      return "host access to device memory";
    case Bug::kAssert:
      return "assertion failed";
    case Bug::kTrap:
      return "trap";
    case Bug::kLeak:
      return "leak";
    case Bug::kOther:
      return "bug";
  }
  return "bug";
}

void Report(Bug bug, const std::string& text) {
  std::string message = std::string("cudasim: ") + BugName(bug) + "\n  ";
  for (char c : text) {
    message += c;
    if (c == '\n') message += "  ";
  }
  message += "\n";
  std::fputs(message.c_str(), stderr);
  std::fflush(stderr);
  if (GetExecutorSettings().abort_on_bug) std::abort();
  Reports& reports = AllReports();
  std::lock_guard<std::mutex> lock(reports.mutex);
  reports.texts.push_back(message);
}

std::vector<std::string> TakeReports() {
  Reports& reports = AllReports();
  std::lock_guard<std::mutex> lock(reports.mutex);
  return std::exchange(reports.texts, {});
}

}  // namespace cudasim
