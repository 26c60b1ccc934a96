#include "report.h"

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <unordered_map>

#include "block_runner.h"
#include "sanitizers.h"

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

std::string KernelSymbol(const void* function) {
  std::string name = SymbolAt(function, false);
  if (name.empty()) return Text() << "kernel at " << function;
  // "void K<float>(float*, int)" is "K<float>".
  if (name.back() == ')') {
    int depth = 0;
    for (size_t i = name.size(); i-- > 0;) {
      depth += name[i] == ')' ? 1 : name[i] == '(' ? -1 : 0;
      if (depth == 0) {
        name.resize(i);
        break;
      }
    }
  }
  if (name.rfind("void ", 0) == 0) name.erase(0, 5);
  return name;
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

std::string KernelName(const Launch& launch) {
  if (launch.name != nullptr) return launch.name;
  // Symbols are read once per kernel.
  static std::mutex mutex;
  static auto* names = new std::unordered_map<const void*, std::string>;
  std::lock_guard<std::mutex> lock(mutex);
  std::string& name = (*names)[launch.function];
  if (name.empty()) name = KernelSymbol(launch.function);
  return name;
}

std::string CurrentThread() {
  BlockRunner* runner = BlockRunner::Current();
  if (runner == nullptr) return "";
  return Text() << "kernel " << KernelName(runner->launch()) << ", block " << blockIdx << " of "
                << gridDim << ", thread " << runner->IndexOf(runner->thread()) << " of "
                << blockDim;
}

void Report(Bug bug, const std::string& text) {
  const std::string thread = CurrentThread();
  std::string message = Text() << "cudasim: " << BugName(bug) << "\n";
  if (!thread.empty()) message += "  " + thread + "\n";
  message += "  ";
  for (char c : text) {
    message += c;
    if (c == '\n') message += "  ";
  }
  message += "\n";
  std::fputs(message.c_str(), stderr);
  std::fflush(stderr);
  if (GetExecutorSettings().abort_on_bug) std::abort();
  {
    Reports& reports = AllReports();
    std::lock_guard<std::mutex> lock(reports.mutex);
    reports.texts.push_back(message);
  }
  if (BlockRunner* runner = BlockRunner::Current(); runner != nullptr && runner->InThread()) {
    runner->GiveUp();
  }
}

std::vector<std::string> TakeReports() {
  Reports& reports = AllReports();
  std::lock_guard<std::mutex> lock(reports.mutex);
  return std::exchange(reports.texts, {});
}

void Trap(Where where) {
  Report(Bug::kTrap, Text() << "__trap() at " << where);
  std::abort();  // outside of a kernel
}

}  // namespace cudasim

// assert() in a kernel: glibc's text does not say which thread it was.
extern "C" void __assert_fail(const char* expression, const char* file, unsigned int line,
                              const char* function) noexcept {
  const std::string text = cudasim::Text()
                           << file << ":" << line << ": " << function << ": " << expression;
  if (!cudasim::CurrentThread().empty()) cudasim::Report(cudasim::Bug::kAssert, text);
  std::fprintf(stderr, "%s: Assertion failed.\n", text.c_str());
  std::abort();
}
