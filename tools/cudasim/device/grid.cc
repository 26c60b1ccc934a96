// Grids: runs blocks on a pool of OS threads that lives as long as the process.
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <memory>
#include <mutex>
#include <numeric>
#include <thread>

#include "block_runner.h"
#include "cudasim/access.h"
#include "race.h"
#include "sanitizers.h"

namespace cudasim {
namespace {

// The order in which blocks begin: a permutation of their numbers.
class BlockOrder {
 public:
  BlockOrder(const ExecutorSettings& settings, uint64_t blocks)
      : order_(settings.order), blocks_(blocks) {
    if (order_ != Order::kRandom) return;
    RandomBits random(settings.seed);
    offset_ = random.Below(blocks);
    // An affine map is a permutation if its factor and the number of blocks are coprime.
    do {
      factor_ = random.Below(blocks) + 1;
    } while (std::gcd(factor_, blocks) != 1);
  }

  uint64_t operator()(uint64_t i) const {
    if (order_ == Order::kForward) return i;
    if (order_ == Order::kReverse) return blocks_ - 1 - i;
    return static_cast<uint64_t>((static_cast<unsigned __int128>(i) * factor_ + offset_) % blocks_);
  }

 private:
  Order order_;
  uint64_t blocks_;
  uint64_t factor_ = 1, offset_ = 0;
};

struct Grid {
  Grid(int device, const Launch& launch, uint64_t blocks)
      : device(device), launch(launch), blocks(blocks), order(GetExecutorSettings(), blocks) {}

  const int device;
  const Launch& launch;
  const uint64_t blocks;
  const BlockOrder order;
  std::atomic<uint64_t> next{0};
  std::atomic<bool> failed{false};
  int helpers = 0;  // under the pool's mutex
};

// When a sanitizer ends the process it names the line; this adds the thread.
void PrintThread() {
  const std::string thread = CurrentThread();
  if (!thread.empty())
    std::fprintf(stderr, "cudasim: found by a sanitizer\n  %s\n", thread.c_str());
}

void RunBlocks(Grid* grid, BlockRunner* runner) {
  const DeviceAccess access(grid->device);
  const dim3 extent = grid->launch.grid;
  const uint64_t seed = GetExecutorSettings().seed;
  for (;;) {
    const uint64_t i = grid->next.fetch_add(1, std::memory_order_relaxed);
    if (i >= grid->blocks || grid->failed.load(std::memory_order_relaxed)) return;
    const uint64_t block = grid->order(i);
    const uint3 index{static_cast<unsigned>(block % extent.x),
                      static_cast<unsigned>(block / extent.x % extent.y),
                      static_cast<unsigned>(block / extent.x / extent.y)};
    if (!runner->Run(grid->launch, index, seed + 0x9e3779b97f4a7c15u * (block + 1))) {
      grid->failed.store(true, std::memory_order_relaxed);
    }
  }
}

class Pool {
 public:
  Pool() {
    if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(&PrintThread);
  }

  // The calling thread participates; the pool's threads join it if there is enough work.
  bool Run(Grid* grid) {
    const int helpers = Helpers(*grid);
    if (helpers > 0) {
      std::lock_guard<std::mutex> lock(mutex_);
      while (static_cast<int>(threads_) < helpers) {
        std::thread(&Pool::Work, this).detach();
        ++threads_;
      }
      grids_.push_back(grid);
      for (int i = 0; i < helpers; ++i) wake_.notify_one();
    }
    std::unique_ptr<BlockRunner> runner = TakeRunner();
    RunBlocks(grid, runner.get());
    std::unique_lock<std::mutex> lock(mutex_);
    if (helpers > 0) {
      std::erase(grids_, grid);
      done_.wait(lock, [&] { return grid->helpers == 0; });
    }
    runners_.push_back(std::move(runner));
    return !grid->failed;
  }

 private:
  static int Helpers(const Grid& grid) {
    if (kRaceChecker) return 0;
    const dim3 block = grid.launch.block;
    const uint64_t threads = grid.blocks * block.x * block.y * block.z;
    // Waking a thread costs as much as running a few hundred threads of a kernel.
    if (grid.blocks < 2 || threads < 512) return 0;
    const auto most = static_cast<uint64_t>(GetExecutorSettings().threads) - 1;
    return static_cast<int>(std::min(most, grid.blocks - 1));
  }

  std::unique_ptr<BlockRunner> TakeRunner() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (runners_.empty()) return std::make_unique<BlockRunner>();
    std::unique_ptr<BlockRunner> runner = std::move(runners_.back());
    runners_.pop_back();
    return runner;
  }

  void Work() {
    BlockRunner runner;
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return !grids_.empty(); });
      Grid* grid = grids_.front();
      if (grid->next.load(std::memory_order_relaxed) >= grid->blocks) {
        grids_.pop_front();  // all its blocks are taken
        continue;
      }
      if (grid->helpers + 1 >= GetExecutorSettings().threads) {
        wake_.wait(lock);
        continue;
      }
      ++grid->helpers;
      lock.unlock();
      RunBlocks(grid, &runner);
      lock.lock();
      if (--grid->helpers == 0) done_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::deque<Grid*> grids_;  // grids with unstarted blocks
  int threads_ = 0;
  std::vector<std::unique_ptr<BlockRunner>> runners_;  // of threads that called Run
};

// Its threads run until the process ends. It is created before any threads that could race to do
// so: since this file is not instrumented, ThreadSanitizer would not see the synchronisation of a
// local static.
Pool* const pool = new Pool;

}  // namespace

cudaError_t RunGrid(int device, const Launch& launch) {
  if (launch.run_grid) return launch.run_grid(device);
  const uint64_t blocks = static_cast<uint64_t>(launch.grid.x) * launch.grid.y * launch.grid.z;
  Grid grid(device, launch, blocks);
  RaceBeginGrid();
  const bool ok = pool->Run(&grid);
  RaceEndGrid();
  return ok ? cudaSuccess : cudaErrorLaunchFailure;
}

}  // namespace cudasim

// UndefinedBehaviorSanitizer calls it while it reports.
extern "C" void __ubsan_on_report() { cudasim::PrintThread(); }
