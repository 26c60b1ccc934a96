// The Work of an operation on a CUDA stream.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "core/stream.h"
#include "dist/control/failure_board.h"
#include "dist/work.h"

namespace lockstep::dist {

// A CUDA event with timing.
class TimedEvent : public Moment {
 public:
  explicit TimedEvent(Stream stream);  // records it at once
  ~TimedEvent() override;
  TimedEvent(const TimedEvent&) = delete;
  TimedEvent& operator=(const TimedEvent&) = delete;

  bool Query() const;
  void MakeWait(Stream stream) const;
  std::optional<double> Since(const Moment& other) const override;

 private:
  Device device_;
  void* event_ = nullptr;
};

// A point of a stream, and its time on the host's clock.
struct Anchor {
  std::shared_ptr<TimedEvent> event;
  Work::Clock::time_point time;
};

// The failure that a group, its works and its watchdog share.
class FailureState {
 public:
  FailureState(std::string group, int rank) : group_(std::move(group)), rank_(rank) {}

  std::optional<Failure> Get() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return failure_;
  }
  // Returns false if there is one already.
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
  // Records the start on the stream, except while a graph is captured; then there is no span.
  // `needs`: how many transfers an exchange's peers must have begun for it to end.
  NcclWork(const Collective& operation, std::string purpose, TransferCounts needs, Stream stream,
           const Anchor& anchor, bool captured, std::shared_ptr<FailureState> state);
  // Call it once the operation's work has been submitted.
  void Submitted();

  void Wait() override;
  void Synchronize() override;
  bool Done() const override;
  std::optional<Span> span() const override;

  const std::string& purpose() const { return purpose_; }
  const TransferCounts& needs() const { return needs_; }
  bool HasFinished() const { return end_ != nullptr && end_->Query(); }

 private:
  const std::string purpose_;
  const TransferCounts needs_;
  const Stream stream_;
  const Anchor anchor_;
  const std::shared_ptr<FailureState> state_;
  const bool captured_;
  std::unique_ptr<TimedEvent> begin_, end_;
};

}  // namespace lockstep::dist
