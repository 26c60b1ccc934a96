// Threads that work on a queue and whose results come out in its order.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace lockstep::data {

// For one thread that calls Push and Pop.
template <class In, class Out>
class OrderedWorkers {
 public:
  // `work` is called by `threads` threads at once, or by as many as the system has; system_error if
  // it has none.
  OrderedWorkers(int threads, std::function<Out(In)> work) : work_(std::move(work)) {
    try {
      for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
    } catch (const std::system_error&) {
      if (threads_.empty()) throw;
    }
  }
  // Drops the items that no thread has begun.
  ~OrderedWorkers() {
    {
      const std::lock_guard lock(mutex_);
      tasks_.clear();
      stop_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  OrderedWorkers(const OrderedWorkers&) = delete;
  OrderedWorkers& operator=(const OrderedWorkers&) = delete;

  void Push(In item) {
    std::packaged_task<Out()> task(
        [this, item = std::move(item)]() mutable { return work_(std::move(item)); });
    results_.push_back(task.get_future());
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    changed_.notify_one();
  }

  // Waits for the result of the oldest item that has been pushed and not popped, and returns it or
  // throws what `work` threw.
  Out Pop() {
    std::future<Out> result = std::move(results_.front());
    results_.pop_front();
    return result.get();
  }

  // Items that have been pushed and not popped.
  size_t size() const { return results_.size(); }

 private:
  void Run() {
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stop_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      std::packaged_task<Out()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
    }
  }

  const std::function<Out(In)> work_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::deque<std::packaged_task<Out()>> tasks_;
  std::deque<std::future<Out>> results_;
  std::vector<std::thread> threads_;  // last: they use the others
};

}  // namespace lockstep::data
