// The Work of operations that a thread of this process runs.
#pragma once

#include <condition_variable>
#include <exception>
#include <mutex>

#include "dist/work.h"

namespace lockstep::dist {

class HostWork : public Work {
 public:
  explicit HostWork(const Collective& operation) : Work(operation) {}

  void Wait() override { Synchronize(); }
  void Synchronize() override {
    std::unique_lock<std::mutex> lock(mutex_);
    ended_.wait(lock, [this] { return done_; });
    if (error_) std::rethrow_exception(error_);
  }
  bool Done() const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return done_;
  }
  std::optional<Span> span() const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!done_ || error_) return std::nullopt;
    return span_;
  }

  // By the thread that runs it, once.
  void End(const Span& span, std::exception_ptr error) {
    const std::lock_guard<std::mutex> lock(mutex_);
    span_ = span;
    error_ = std::move(error);
    done_ = true;
    ended_.notify_all();
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  bool done_ = false;
  Span span_;
  std::exception_ptr error_;
};

}  // namespace lockstep::dist
