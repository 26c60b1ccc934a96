// Grids: blocks on threads of the operating system.
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>

#include "tools/cudasim/ptx/block.h"
#include "tools/cudasim/ptx/detectors/counters.h"
#include "tools/cudasim/ptx/launch.h"

namespace cudasim {
namespace ptx {
namespace {

// The order in which blocks begin: a permutation of their numbers.
class BlockOrder {
 public:
  BlockOrder(const Settings& settings, uint64_t blocks) : order_(settings.order), blocks_(blocks) {
    if (order_ != Settings::Order::kRandom) return;
    Random random(settings.seed);
    offset_ = random.Below(blocks);
    // An affine map is a permutation if its factor and the number of blocks are coprime.
    do {
      factor_ = random.Below(blocks) + 1;
    } while (std::gcd(factor_, blocks) != 1);
  }

  uint64_t operator()(uint64_t i) const {
    if (order_ == Settings::Order::kReverse) return blocks_ - 1 - i;
    return static_cast<uint64_t>((static_cast<unsigned __int128>(i) * factor_ + offset_) % blocks_);
  }

 private:
  Settings::Order order_;
  uint64_t blocks_, factor_ = 1, offset_ = 0;
};

struct Grid {
  Grid(const Launch& launch, const Settings& settings)
      : launch(launch), settings(settings), blocks(launch.grid.count()), order(settings, blocks) {
    if (settings.find_races) races = std::make_unique<GridRaces>();
  }

  const Launch& launch;
  const Settings& settings;
  const uint64_t blocks;
  const BlockOrder order;
  std::unique_ptr<GridRaces> races;  // null unless they are sought
  std::atomic<uint64_t> next{0};
  std::mutex mutex;
  std::exception_ptr error;  // the first
  int helpers = 0;           // threads of the pool that run it, under the pool's mutex
};

// A thread's block, which keeps its memory from launch to launch. A library that is loaded at run
// time has little memory for thread_local variables.
Block& ThreadsBlock() {
  static thread_local const auto block = std::make_unique<Block>();
  return *block;
}

void Prepare(const Grid& grid, const Settings& settings, Tally* tally, Block* block) {
  block->Prepare(grid.launch, settings);
  if (grid.races != nullptr) block->Watch(grid.races.get());
  if (settings.counters != nullptr) block->CountIn(tally);
}

void RunBlocks(Grid* grid, Tally* tally) {
  Block& block = ThreadsBlock();
  bool prepared = false;
  for (;;) {
    const uint64_t i = grid->next.fetch_add(1, std::memory_order_relaxed);
    if (i >= grid->blocks) return;
    if (!prepared) Prepare(*grid, grid->settings, tally, &block);
    prepared = true;
    block.Begin(grid->order(i));
    block.Run(false);
  }
}

// Blocks of a cooperative launch wait for each other: they take turns on one thread. They meet at a
// barrier in memory that is only theirs.
void RunTogether(Grid* grid, Tally* tally) {
  struct Workspace {
    uint32_t bytes = sizeof(Workspace), barrier = 0;
  };
  Workspace workspace;
  const auto address = reinterpret_cast<uintptr_t>(&workspace);
  Settings settings = grid->settings;
  if (settings.accessible) {
    settings.accessible = [&](uintptr_t at) {
      return at - address < sizeof(workspace) ? Extent{address, address + sizeof(workspace)}
                                              : grid->settings.accessible(at);
    };
  }
  std::vector<std::unique_ptr<Block>> blocks;
  for (uint64_t i = 0; i < grid->blocks; ++i) {
    blocks.push_back(std::make_unique<Block>());
    Prepare(*grid, settings, tally, blocks.back().get());
    blocks.back()->SetWorkspace(address);
    blocks.back()->Begin(grid->order(i));
  }
  while (!blocks.empty()) {
    std::erase_if(blocks, [](const std::unique_ptr<Block>& block) { return block->Run(true); });
  }
}

// A thread's part of a grid. Of the threads that fail the first one's error is kept.
void TakePart(Grid* grid) {
  Tally tally;
  const auto run = [grid, &tally] {
    try {
      if (grid->launch.cooperative) {
        RunTogether(grid, &tally);
      } else {
        RunBlocks(grid, &tally);
      }
    } catch (...) {
      grid->next.store(grid->blocks, std::memory_order_relaxed);
      const std::lock_guard<std::mutex> lock(grid->mutex);
      if (grid->error == nullptr) grid->error = std::current_exception();
    }
  };
  if (grid->settings.around) {
    grid->settings.around(run);
  } else {
    run();
  }
  Counters* const counters = grid->settings.counters;
  if (counters != nullptr) counters->Add(grid->launch.program->name, tally);
}

// Threads that live as long as the process.
class Pool {
 public:
  // The calling thread takes part.
  void Run(Grid* grid) {
    const int helpers = Helpers(*grid);
    if (helpers > 0) {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (; threads_ < helpers; ++threads_) std::thread(&Pool::Work, this).detach();
      grids_.push_back(grid);
      wake_.notify_all();
    }
    TakePart(grid);
    if (helpers == 0) return;
    std::unique_lock<std::mutex> lock(mutex_);
    std::erase(grids_, grid);
    done_.wait(lock, [&] { return grid->helpers == 0; });
  }

 private:
  static int Helpers(const Grid& grid) {
    if (grid.races != nullptr) return 0;
    // Waking a thread costs as much as running some thousand threads of a small kernel.
    if (grid.launch.cooperative || grid.blocks < 2 ||
        grid.blocks * grid.launch.block.count() < 4096)
      return 0;
    return static_cast<int>(std::min<uint64_t>(grid.settings.threads - 1, grid.blocks - 1));
  }

  void Work() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      Grid* grid = nullptr;
      wake_.wait(lock, [&] {
        for (Grid* candidate : grids_) {
          if (candidate->next.load(std::memory_order_relaxed) < candidate->blocks &&
              candidate->helpers < Helpers(*candidate)) {
            grid = candidate;
          }
        }
        return grid != nullptr;
      });
      ++grid->helpers;
      lock.unlock();
      TakePart(grid);
      lock.lock();
      if (--grid->helpers == 0) done_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::vector<Grid*> grids_;
  int threads_ = 0;
};

}  // namespace

void Run(const Launch& launch, const Settings& settings) {
  static auto* const pool = new Pool;
  Grid grid(launch, settings);
  if (settings.counters != nullptr) settings.counters->AddLaunch(launch.program->name);
  pool->Run(&grid);
  if (grid.error != nullptr) std::rethrow_exception(grid.error);
}

std::vector<std::byte> PackParameters(const Program& kernel, void* const* arguments) {
  std::vector<std::byte> bytes(kernel.parameter_bytes);
  for (size_t j = 0; j < kernel.parameters.size(); ++j) {
    std::memcpy(bytes.data() + kernel.parameter_offsets[j], arguments[j],
                kernel.parameters[j].bytes);
  }
  return bytes;
}

}  // namespace ptx
}  // namespace cudasim
