#include "core/thread_pool.h"

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "core/chunk_queue.h"
#include "core/error.h"
#include "core/system/processors.h"

namespace lockstep {
namespace {

thread_local bool inside_pool = false;

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// A job is over when its chunks are done: it never waits for a worker that the system has not yet
// scheduled, which is common on a busy machine. After each job, workers spin for a moment, since
// the next job usually follows within microseconds, and then sleep.
class ThreadPool {
 public:
  explicit ThreadPool(int threads) {
    try {
      for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { Work(); });
    } catch (const std::system_error&) {  // the system has no more: those that there are will do
    }
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
    if (!lock.owns_lock() || workers_.empty() || chunks > kMaxChunks) {
      for (int64_t i = 0; i < chunks; ++i) function(context, i);
      return;
    }
    error_ = nullptr;
    queue_.Prepare(function, context, static_cast<uint32_t>(chunks));
    queue_.Publish();
    epoch_.fetch_add(1);  // sequentially consistent with sleeping_: no wake-up is lost
    if (sleeping_.load() > 0) epoch_.notify_all();
    inside_pool = true;
    TakeChunks();
    inside_pool = false;
    for (int i = 0; !queue_.AllDone(); ++i) {
      if (i < kSpins) {
        Pause();
      } else {
        std::this_thread::yield();  // the worker that is still busy may need this core
      }
    }
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  static constexpr int kSpins = 4000;  // about 100 microseconds
  static constexpr int64_t kMaxChunks = UINT32_MAX;

  void TakeChunks() {
    while (const auto chunk = queue_.Take()) {
      try {
        chunk->function(chunk->context, chunk->index);
      } catch (...) {
        std::lock_guard lock(error_mutex_);
        if (!error_) error_ = std::current_exception();
      }
      queue_.Done();
    }
  }

  void Work() {
    inside_pool = true;
    for (uint32_t seen = 0;;) {
      for (int i = 0; i < kSpins && epoch_.load(std::memory_order_acquire) == seen; ++i) Pause();
      while (epoch_.load() == seen) {
        sleeping_.fetch_add(1);
        epoch_.wait(seen);
        sleeping_.fetch_sub(1);
      }
      seen = epoch_.load(std::memory_order_acquire);
      if (stop_.load()) return;
      TakeChunks();
    }
  }

  std::mutex in_use_;
  std::mutex error_mutex_;
  std::exception_ptr error_;
  internal::ChunkQueue queue_;
  std::atomic<uint32_t> epoch_{0};
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
    PoolSlot() = std::make_unique<ThreadPool>(UsableProcessors());
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
