// The race checker's records of memory accesses.
#ifndef CUDASIM_DEVICE_RACE_SHADOW_H_
#define CUDASIM_DEVICE_RACE_SHADOW_H_

#include <cstdint>
#include <memory>
#include <vector>

namespace cudasim {

// An access to some of 4 bytes. Epochs count the phases between barriers of all blocks of all
// grids, from 1 on; 0 is no access.
struct AccessRecord {
  uint32_t epoch = 0;
  uint16_t thread = 0;
  uint8_t bytes = 0;  // one bit each
  bool atomic = false;
  uint32_t time = 0;  // the lane's, see RaceChecker::clocks_
  uint32_t code = 0;  // the instruction, see CodeNumber
};

// The last two writes and reads of 4 bytes. Since more of them displace older ones, races of three
// threads and of bytes that share a word may be missed, but there are no false positives.
struct Cell {
  AccessRecord writes[2];
  AccessRecord reads[2];
};

// Cells of global memory, by pages. A grid's accesses are forgotten at its end.
class GlobalShadow {
 public:
  static constexpr uintptr_t kPageBytes = 4096;
  static constexpr size_t kCells = kPageBytes / 4;

  GlobalShadow() : slots_(kSlots) {}

  void BeginGrid() {
    ++grid_;
    pages_used_ = 0;
  }

  // The page's cells; null once a kernel has touched more memory than can be tracked (128 MB).
  Cell* PageOf(uintptr_t address) {
    const uintptr_t page = address / kPageBytes;
    if (page == last_page_ && grid_ == last_grid_) return last_cells_;
    size_t slot = (page * 0x9e3779b97f4a7c15u) >> 32;
    for (;; ++slot) {
      Slot& entry = slots_[slot % kSlots];
      if (entry.grid != grid_) {
        if (pages_used_ == kSlots / 2) return nullptr;
        // Records of earlier grids need not be cleared: their epochs are too old to matter.
        if (pages_used_ == pages_.size()) pages_.push_back(std::make_unique<Cell[]>(kCells));
        entry = {page, grid_, pages_[pages_used_++].get()};
      }
      if (entry.page == page) {
        last_page_ = page;
        last_grid_ = grid_;
        return last_cells_ = entry.cells;
      }
    }
  }

 private:
  static constexpr size_t kSlots = 1 << 16;
  struct Slot {
    uintptr_t page = 0;
    uint64_t grid = 0;
    Cell* cells = nullptr;
  };
  std::vector<Slot> slots_;
  std::vector<std::unique_ptr<Cell[]>> pages_;
  size_t pages_used_ = 0;
  uint64_t grid_ = 0;
  uintptr_t last_page_ = 0;
  uint64_t last_grid_ = 0;
  Cell* last_cells_ = nullptr;
};

}  // namespace cudasim

#endif  // CUDASIM_DEVICE_RACE_SHADOW_H_
