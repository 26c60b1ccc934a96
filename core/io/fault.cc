#include "core/io/fault.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdlib>

#include "core/error.h"

namespace lockstep {
namespace {

std::atomic<FaultInjector*> g_current{nullptr};

// Lives as long as the process: operations may run in static destructors.
FaultInjector* FromEnvironment() {
  const char* text = std::getenv("LOCKSTEP_FAULT");
  if (text == nullptr || *text == '\0') return nullptr;
  return new FaultInjector(FaultPlan::Parse(text));
}

bool InstallFromEnvironment() {
  if (FaultInjector* injector = FromEnvironment()) g_current.store(injector);
  return true;
}

struct NamedFault {
  std::string_view name;
  FaultPlan::Action action;
  int error;
};

constexpr NamedFault kFaults[] = {
    {"kill", FaultPlan::Action::kKill, 0},        {"tear", FaultPlan::Action::kTear, 0},
    {"short", FaultPlan::Action::kShort, 0},      {"enospc", FaultPlan::Action::kFail, ENOSPC},
    {"eio", FaultPlan::Action::kFail, EIO},       {"eintr", FaultPlan::Action::kFail, EINTR},
    {"eacces", FaultPlan::Action::kFail, EACCES}, {"edquot", FaultPlan::Action::kFail, EDQUOT},
    {"erofs", FaultPlan::Action::kFail, EROFS},   {"slow", FaultPlan::Action::kSlow, 0},
};

}  // namespace

std::string_view Name(FileOp op) {
  switch (op) {
    case FileOp::kCreate:
      return "create";
    case FileOp::kWrite:
      return "write";
    case FileOp::kSync:
      return "sync";
    case FileOp::kRename:
      return "rename";
    case FileOp::kMakeDirectory:
      return "make_directory";
    case FileOp::kRemove:
      return "remove";
    case FileOp::kSymlink:
      return "symlink";
  }
  return "unknown";
}

FaultPlan FaultPlan::Parse(std::string_view text) {
  const auto fail = [&]() -> InputError {
    std::string names;
    for (const NamedFault& fault : kFaults) names += StrCat(names.empty() ? "" : ", ", fault.name);
    return InputError(StrCat("LOCKSTEP_FAULT: \"", text,
                             "\" is not FAULT@N or FAULT@N+ with N >= 1 and FAULT one of ", names));
  };
  FaultPlan plan;
  const size_t at_sign = text.find('@');
  if (at_sign == std::string_view::npos) throw fail();
  for (const NamedFault& fault : kFaults) {
    if (fault.name != text.substr(0, at_sign)) continue;
    plan.action = fault.action;
    plan.error = fault.error;
  }
  std::string_view number = text.substr(at_sign + 1);
  if (number.ends_with('+')) {
    plan.repeat = true;
    number.remove_suffix(1);
  }
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), plan.at);
  if (plan.action == Action::kNone || error != std::errc() ||
      end != number.data() + number.size() || plan.at < 1) {
    throw fail();
  }
  return plan;
}

FaultInjector::Verdict FaultInjector::Before(FileOp op, const std::string& path,
                                             const std::string& target, size_t bytes) {
  const std::lock_guard lock(mutex_);
  ++operations_;
  events_.push_back({op, path, target});
  Verdict verdict;
  if (!(operations_ == plan_.at || (plan_.repeat && operations_ > plan_.at))) return verdict;
  switch (plan_.action) {
    case FaultPlan::Action::kNone:
      break;
    case FaultPlan::Action::kKill:
      KillThisProcess();
    case FaultPlan::Action::kTear:
      if (op != FileOp::kWrite) KillThisProcess();
      verdict.max_bytes = (bytes + 1) / 2;
      verdict.kill_after = true;
      break;
    case FaultPlan::Action::kFail:
      if (plan_.repeat && plan_.error == ENOSPC && op == FileOp::kRemove) break;
      verdict.error = plan_.error;
      break;
    case FaultPlan::Action::kShort:
      if (op == FileOp::kWrite) verdict.max_bytes = 1;
      break;
    case FaultPlan::Action::kSlow:
      if (op == FileOp::kSync) verdict.delay = plan_.delay;
      break;
  }
  return verdict;
}

int64_t FaultInjector::operations() const {
  const std::lock_guard lock(mutex_);
  return operations_;
}

std::vector<FaultInjector::Event> FaultInjector::events() const {
  const std::lock_guard lock(mutex_);
  return events_;
}

FaultInjector* FaultInjector::Current() {
  static const bool installed = InstallFromEnvironment();
  static_cast<void>(installed);
  return g_current.load(std::memory_order_acquire);
}

void FaultInjector::KillThisProcess() {
  kill(getpid(), SIGKILL);
  for (;;) pause();
}

ScopedFaultInjector::ScopedFaultInjector(FaultInjector* injector)
    : previous_(FaultInjector::Current()) {
  g_current.store(injector, std::memory_order_release);
}

ScopedFaultInjector::~ScopedFaultInjector() {
  g_current.store(previous_, std::memory_order_release);
}

}  // namespace lockstep
