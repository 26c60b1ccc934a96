// The Work of an operation that a thread of this process runs.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <utility>

#include "dist/blocked_time.h"
#include "dist/control/failure.h"
#include "dist/work.h"

namespace lockstep::dist {

class HostWork : public Work {
 public:
  HostWork(const Collective& operation, std::string purpose, std::string group, int rank)
      : Work(operation), purpose_(std::move(purpose)), group_(std::move(group)), rank_(rank) {}

  void Wait() override { Synchronize(); }
  void Synchronize() override {
    const Blocked blocked(group_);
    std::unique_lock<std::mutex> lock(mutex_);
    ended_.wait(lock, [this] { return done_; });
    // Made here, so that no two threads share an exception.
    if (failure_) throw ErrorOf(*failure_, group_, rank_, operation(), purpose_);
  }
  bool Done() const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return done_;
  }
  std::optional<Span> span() const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!done_ || failure_) return std::nullopt;
    return span_;
  }

  // Called once, by the thread that runs the operation.
  void End(const Span& span, std::optional<Failure> failure) {
    const std::lock_guard<std::mutex> lock(mutex_);
    span_ = span;
    failure_ = std::move(failure);
    done_ = true;
    ended_.notify_all();
  }

 private:
  const std::string purpose_, group_;
  const int rank_;
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  bool done_ = false;
  Span span_;
  std::optional<Failure> failure_;
};

}  // namespace lockstep::dist
