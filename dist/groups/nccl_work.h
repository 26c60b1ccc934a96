// The Work of operations on a CUDA stream.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "core/stream.h"
#include "dist/control/failure_board.h"
#include "dist/work.h"

namespace lockstep::dist {

// An event of CUDA with its time.
class TimedEvent {
 public:
  explicit TimedEvent(Stream stream);  // recorded there and then
  ~TimedEvent();
  TimedEvent(const TimedEvent&) = delete;
  TimedEvent& operator=(const TimedEvent&) = delete;

  bool Query() const;
  void MakeWait(Stream stream) const;
  // Milliseconds; both have come.
  double Since(const TimedEvent& other) const;

 private:
  Device device_;
  void* event_ = nullptr;
};

// What a moment of a stream is on the host's clock.
struct Anchor {
  std::shared_ptr<TimedEvent> event;
  Work::Clock::time_point time;
};

// What a group, its works and its watchdog know of a failure.
class FailureState {
 public:
  FailureState(std::string group, int rank) : group_(std::move(group)), rank_(rank) {}

  std::optional<Failure> Get() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return failure_;
  }
  // False if there is one already.
  bool Set(const Failure& failure) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failure_) return false;
    failure_ = failure;
    return true;
  }
  void ThrowIfFailed(const Collective& operation, const std::string& purpose = "") const {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failure_) throw ErrorOf(*failure_, group_, rank_, operation, purpose);
  }

 private:
  const std::string group_;
  const int rank_;
  mutable std::mutex mutex_;
  std::optional<Failure> failure_;
};

class NcclWork : public Work {
 public:
  // Records its begin on the stream; without it (while a graph is captured) there is no span.
  NcclWork(const Collective& operation, std::string purpose, Stream stream, const Anchor& anchor,
           bool captured, std::shared_ptr<FailureState> state);
  // What belongs to it has been submitted.
  void Submitted();

  void Wait() override;
  void Synchronize() override;
  bool Done() const override;
  std::optional<Span> span() const override;

  const std::string& purpose() const { return purpose_; }
  bool HasFinished() const { return end_ != nullptr && end_->Query(); }

 private:
  const std::string purpose_;
  const Stream stream_;
  const Anchor anchor_;
  const std::shared_ptr<FailureState> state_;
  const bool captured_;
  std::unique_ptr<TimedEvent> begin_, end_;
};

}  // namespace lockstep::dist
