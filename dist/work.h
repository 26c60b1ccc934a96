// An operation in progress.
#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "dist/collective.h"

namespace lockstep::dist {

// When a device gets to a point of a stream's work.
class Moment {
 public:
  virtual ~Moment() = default;
  // In milliseconds; none before the device has passed both, which are of the same group.
  virtual std::optional<double> Since(const Moment& other) const = 0;
};

class Work {
 public:
  using Clock = std::chrono::steady_clock;
  // When the operation ran: from when its inputs were ready and all earlier operations of its group
  // were done, until its result was there. This includes waiting for slower ranks.
  struct Span {
    Clock::time_point begin, end;
    // On the host, of it: how long messages took to arrive once all ranks were in the call, as the
    // first ones show. A rank whose own messages are slow makes this long for the others.
    Clock::duration receiving{};
  };

  virtual ~Work() = default;
  Work() = default;
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  // Orders this thread's subsequent work after the operation: on the CPU it returns when the result
  // is there; on CUDA the thread's current stream waits, and the host continues. Throws the
  // operation's CollectiveError; on CUDA, where errors surface later, only if it is already known.
  virtual void Wait() = 0;
  // Blocks the host until the result is there; throws the operation's CollectiveError.
  virtual void Synchronize() = 0;
  // Whether it has ended, successfully or not.
  virtual bool Done() const = 0;
  // Only for an operation that succeeded.
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
