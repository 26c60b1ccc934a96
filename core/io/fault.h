// Fault injection below core/io/file.h, for tests of crash safety. Off, it costs one atomic load
// per file operation.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// The operations that change what a file system holds. Each is counted, from 1, in program order.
enum class FileOp : uint8_t { kCreate, kWrite, kSync, kRename, kMakeDirectory, kRemove, kSymlink };

std::string_view Name(FileOp op);

// What goes wrong, and at which operation.
struct FaultPlan {
  enum class Action : uint8_t {
    kNone,   // count and record only
    kKill,   // SIGKILL to this process before the operation
    kTear,   // as kKill, but half of a write gets through first
    kFail,   // the operation fails with `error`
    kShort,  // a write accepts only one byte; other operations are unaffected
    kSlow,   // a sync takes `delay` longer; other operations are unaffected
  };
  Action action = Action::kNone;
  int error = 0;
  int64_t at = 0;
  // The fault also hits every later operation. With ENOSPC the disk stays full, but files can still
  // be removed.
  bool repeat = false;
  std::chrono::milliseconds delay{1000};

  // "kill@7", "tear@7", "short@1+", "slow@1+", "enospc@7", "enospc@7+", and so on with eio, eintr,
  // eacces, edquot, erofs. "+" means repeat. Throws InputError for anything else.
  static FaultPlan Parse(std::string_view text);
};

// Counts, records and disturbs file operations. Thread-safe.
class FaultInjector {
 public:
  struct Event {
    FileOp op;
    std::string path;
    std::string target;  // of a rename: the new name; of a symlink: what it points to
  };
  struct Verdict {
    int error = 0;  // an errno value with which the operation must fail
    size_t max_bytes = std::numeric_limits<size_t>::max();  // of a write
    bool kill_after = false;
    std::chrono::milliseconds delay{0};  // before the operation
  };

  explicit FaultInjector(FaultPlan plan = {}) : plan_(plan) {}

  Verdict Before(FileOp op, const std::string& path, const std::string& target, size_t bytes);

  int64_t operations() const;
  std::vector<Event> events() const;

  // The installed injector, or null. The first call installs the one that the environment variable
  // LOCKSTEP_FAULT describes, if any (InputError if it cannot be parsed).
  static FaultInjector* Current();

  [[noreturn]] static void KillThisProcess();

 private:
  const FaultPlan plan_;
  mutable std::mutex mutex_;
  int64_t operations_ = 0;
  std::vector<Event> events_;
};

// Installs an injector for its lifetime, for all threads of the process. Tests only.
class ScopedFaultInjector {
 public:
  explicit ScopedFaultInjector(FaultInjector* injector);
  ~ScopedFaultInjector();
  ScopedFaultInjector(const ScopedFaultInjector&) = delete;
  ScopedFaultInjector& operator=(const ScopedFaultInjector&) = delete;

 private:
  FaultInjector* previous_;
};

}  // namespace lockstep
