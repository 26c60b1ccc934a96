#include "dist/data_parallel/lane.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "core/stream.h"
#include "dist/blocked_time.h"

namespace lockstep::dist {
namespace {

class ThreadLane : public Lane {
 public:
  ThreadLane() : thread_([this] { Run(); }) {}
  ~ThreadLane() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
      jobs_.clear();
    }
    changed_.notify_all();
    thread_.join();
  }

  void Submit(Job job) override {
    {
      const std::lock_guard lock(mutex_);
      jobs_.push_back(std::move(job));
    }
    changed_.notify_all();
  }

  void Wait() override {
    const Blocked blocked(Blocked::kGradientLanes);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return jobs_.empty() && !busy_; });
    if (const std::exception_ptr error = std::exchange(error_, nullptr)) {
      lock.unlock();
      std::rethrow_exception(error);
    }
  }

 private:
  void Run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
      if (stop_) return;
      Job job = std::move(jobs_.front());
      jobs_.pop_front();
      busy_ = true;
      lock.unlock();
      std::exception_ptr error;
      try {
        job();
      } catch (...) {
        error = std::current_exception();
      }
      job = nullptr;  // release what it holds before reporting
      lock.lock();
      busy_ = false;
      if (error) {
        jobs_.clear();
        error_ = error;
      }
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  bool busy_ = false, stop_ = false;
  std::exception_ptr error_;
  std::thread thread_;  // last: it uses the others
};

class StreamLane : public Lane {
 public:
  explicit StreamLane(Device device)
      : backend_(GetStreamBackend(device.type)), stream_(backend_.CreateStream(device)) {}
  ~StreamLane() override {
    try {
      backend_.Synchronize(stream_);
    } catch (...) {  // whatever waits for its result gets the error
    }
  }

  void Submit(Job job) override {
    if (error_) return;
    Event ready(stream_.device);
    ready.Record(CurrentStream(stream_.device));
    ready.Wait(stream_);
    const StreamGuard guard(stream_);
    try {
      job();
    } catch (...) {
      error_ = std::current_exception();
    }
  }

  void Wait() override {
    if (const std::exception_ptr error = std::exchange(error_, nullptr)) {
      std::rethrow_exception(error);
    }
    Event done(stream_.device);
    done.Record(stream_);
    done.Wait(CurrentStream(stream_.device));
  }

 private:
  StreamBackend& backend_;
  const Stream stream_;
  std::exception_ptr error_;
};

}  // namespace

std::unique_ptr<Lane> MakeLane(Device device) {
  if (device.is_cpu()) return std::make_unique<ThreadLane>();
  return std::make_unique<StreamLane>(device);
}

}  // namespace lockstep::dist
