// An operation under way.
#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "dist/groups/collective.h"

namespace lockstep::dist {

class Work {
 public:
  using Clock = std::chrono::steady_clock;
  // When the operation ran: from when all earlier ones of its group were done and its inputs were
  // ready (waiting for slower ranks is part of it) until its result was there.
  struct Span {
    Clock::time_point begin, end;
  };

  virtual ~Work() = default;
  Work() = default;
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  // Orders what this thread does next behind the operation: on the CPU it returns when the result
  // is there; on CUDA the thread's current stream waits, and the host goes on. Throws the
  // operation's CollectiveError; on CUDA, where errors show later, if it is known by now.
  virtual void Wait() = 0;
  // The host waits for the result; throws the operation's CollectiveError.
  virtual void Synchronize() = 0;
  // Whether it has ended, well or not.
  virtual bool Done() const = 0;
  // Of an operation that has ended well.
  virtual std::optional<Span> span() const = 0;

  const Collective& operation() const { return operation_; }

 protected:
  explicit Work(const Collective& operation) : operation_(operation) {}

 private:
  Collective operation_;
};

// Dropping it neither cancels nor waits; operations keep their tensors alive.
using WorkPtr = std::shared_ptr<Work>;

}  // namespace lockstep::dist
