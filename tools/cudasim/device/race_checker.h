#ifndef CUDASIM_DEVICE_RACE_CHECKER_H_
#define CUDASIM_DEVICE_RACE_CHECKER_H_

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "block_runner.h"
#include "cudasim/access.h"
#include "race_shadow.h"

namespace cudasim {

class RaceChecker {
 public:
  // The checker whose grid runs on this OS thread, or null.
  static RaceChecker* Current();
  static RaceChecker& Get();

  void BeginGrid();
  void EndGrid();
  void BeginBlock(BlockRunner* runner);
  void EndBlock();
  void EnterThread(int thread) { thread_ = thread; }
  void OrderBlock() { ++epoch_; }
  void OrderLanes(unsigned present);
  void Fence();

  // The running thread accesses memory, by the instruction before `code`.
  void Access(uintptr_t address, size_t bytes, bool write, bool atomic, const void* code);

 private:
  struct Publication {
    uint32_t epoch;
    int thread;
  };
  // Blocks run one after the other: a block owns the epochs from `begin` to the next block's.
  struct BlockOfGrid {
    uint32_t begin;
    uint3 index;
    std::vector<Publication> published;
  };

  void CheckShared(uintptr_t address, size_t bytes, bool write, const void* code);
  void CheckGlobal(uintptr_t address, size_t bytes, bool write, const void* code);
  void AccessCell(Cell* cell, const AccessRecord& record, bool write, bool shared,
                  uintptr_t address);
  bool Ordered(const AccessRecord& before, bool shared) const;
  bool PublishedAndSeen(const AccessRecord& before) const;
  const BlockOfGrid& BlockOf(uint32_t epoch) const;
  static void Remember(AccessRecord (&records)[2], const AccessRecord& record);
  [[noreturn]] void ReportRace(const AccessRecord& before, bool before_writes,
                               const AccessRecord& now, bool now_writes, bool shared,
                               uintptr_t address);

  std::mutex grid_mutex_;
  BlockRunner* runner_ = nullptr;
  int thread_ = 0;
  uint32_t epoch_ = 0;
  uint32_t grid_begin_ = 0;
  uint32_t block_begin_ = 0;
  std::vector<BlockOfGrid> blocks_;
  // Per thread: the time up to which it has seen each lane of its warp. A lane's accesses since its
  // last __syncwarp have the time [own lane] + 1.
  std::vector<uint32_t> clocks_ = std::vector<uint32_t>(kMaxThreads * 32);
  // Per thread: the epoch of its last fence, or 0.
  std::vector<uint32_t> fenced_ = std::vector<uint32_t>(kMaxThreads);
  // Per thread: whether it has executed an atomic in this block; and the first epoch of any atomic.
  std::vector<bool> synchronised_ = std::vector<bool>(kMaxThreads);
  uint32_t first_synchronised_ = 0;
  std::vector<Cell> shared_cells_;
  GlobalShadow global_;
  // Memory that this grid was found to access rightly, and which entry is replaced next.
  Extent accessible_[8];
  size_t next_accessible_ = 0;
};

}  // namespace cudasim

#endif  // CUDASIM_DEVICE_RACE_CHECKER_H_
