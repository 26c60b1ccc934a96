#include "core/thread_pool.h"

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/error.h"

namespace lockstep {
namespace {

thread_local bool inside_pool = false;

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Workers spin for a moment after each job, as the next one usually follows within microseconds,
// and then sleep.
class ThreadPool {
 public:
  explicit ThreadPool(int threads) {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { Work(); });
  }

  ~ThreadPool() {
    stop_.store(true);
    epoch_.fetch_add(1);
    epoch_.notify_all();
    for (std::thread& w : workers_) w.join();
  }

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  void Run(int64_t chunks, internal::ChunkFunction function, const void* context) {
    std::unique_lock lock(in_use_, std::try_to_lock);
    if (!lock.owns_lock() || workers_.empty()) {
      for (int64_t i = 0; i < chunks; ++i) function(context, i);
      return;
    }
    job_ = {function, context, chunks};
    error_ = nullptr;
    next_.store(0, std::memory_order_relaxed);
    busy_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
    epoch_.fetch_add(1);  // sequentially consistent with sleeping_: no wake-up is lost
    if (sleeping_.load() > 0) epoch_.notify_all();
    inside_pool = true;
    TakeChunks();
    inside_pool = false;
    while (busy_.load(std::memory_order_acquire) > 0) Pause();
    if (error_) std::rethrow_exception(error_);
  }

 private:
  struct Job {
    internal::ChunkFunction function;
    const void* context;
    int64_t chunks;
  };

  void TakeChunks() {
    for (int64_t i = next_.fetch_add(1); i < job_.chunks; i = next_.fetch_add(1)) {
      try {
        job_.function(job_.context, i);
      } catch (...) {
        std::lock_guard lock(error_mutex_);
        if (!error_) error_ = std::current_exception();
      }
    }
  }

  void Work() {
    inside_pool = true;
    for (uint32_t seen = 0;;) {
      constexpr int kSpins = 20000;  // some 100 microseconds
      for (int i = 0; i < kSpins && epoch_.load(std::memory_order_acquire) == seen; ++i) Pause();
      while (epoch_.load() == seen) {
        sleeping_.fetch_add(1);
        epoch_.wait(seen);
        sleeping_.fetch_sub(1);
      }
      seen = epoch_.load(std::memory_order_acquire);
      if (stop_.load()) return;
      TakeChunks();
      busy_.fetch_sub(1, std::memory_order_release);
    }
  }

  std::mutex in_use_;
  std::mutex error_mutex_;
  std::exception_ptr error_;
  Job job_{};
  std::atomic<int64_t> next_{0};
  std::atomic<uint32_t> epoch_{0};
  std::atomic<int> busy_{0};
  std::atomic<int> sleeping_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

std::mutex pool_mutex;
std::unique_ptr<ThreadPool>& PoolSlot() {
  static std::unique_ptr<ThreadPool> pool;
  return pool;
}
std::atomic<ThreadPool*> pool_pointer{nullptr};

ThreadPool& Pool() {
  if (ThreadPool* pool = pool_pointer.load(std::memory_order_acquire)) return *pool;
  std::lock_guard lock(pool_mutex);
  if (!PoolSlot()) {
    PoolSlot() = std::make_unique<ThreadPool>(std::max(1u, std::thread::hardware_concurrency()));
    pool_pointer.store(PoolSlot().get(), std::memory_order_release);
  }
  return *PoolSlot();
}

}  // namespace

int NumThreads() { return Pool().threads(); }

void SetNumThreads(int n) {
  LS_CHECK(n >= 1 && n <= 1024, "the number of threads must be from 1 to 1024, got ", n);
  std::lock_guard lock(pool_mutex);
  pool_pointer.store(nullptr);
  PoolSlot().reset();
  PoolSlot() = std::make_unique<ThreadPool>(n);
  pool_pointer.store(PoolSlot().get(), std::memory_order_release);
}

namespace internal {
void RunChunks(int64_t chunks, ChunkFunction function, const void* context) {
  if (inside_pool) {
    for (int64_t i = 0; i < chunks; ++i) function(context, i);
    return;
  }
  Pool().Run(chunks, function, context);
}
}  // namespace internal

}  // namespace lockstep
