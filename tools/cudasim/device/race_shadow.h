// What the race checker remembers of memory.
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
  uint8_t bytes = 0;  // a bit for each
  bool atomic = false;
  uint32_t time = 0;  // of the lane, see RaceChecker::clocks_
  uint32_t code = 0;  // the address of the instruction, from the program's begin
};

// Two writes and two reads for 4 bytes: more of them displace the older ones, so that races of
// three threads and of bytes that share a word may be missed, but none is made up.
struct Cell {
  AccessRecord writes[2];
  AccessRecord reads[2];
};

// Cells of global memory, by pages. What a grid has touched is forgotten with it.
class GlobalShadow {
 public:
  static constexpr uintptr_t kPageBytes = 4096;
  static constexpr size_t kCells = kPageBytes / 4;

  GlobalShadow() : slots_(kSlots) {}

  void BeginGrid() {
    ++grid_;
    pages_used_ = 0;
  }

  // The cells of the page; null once a kernel has touched more than can be kept (128 MB).
  Cell* PageOf(uintptr_t address) {
    const uintptr_t page = address / kPageBytes;
    if (page == last_page_ && grid_ == last_grid_) return last_cells_;
    size_t slot = (page * 0x9e3779b97f4a7c15u) >> 32;
    for (;; ++slot) {
      Slot& entry = slots_[slot % kSlots];
      if (entry.grid != grid_) {
        if (pages_used_ == kSlots / 2) return nullptr;
        // Records of earlier grids are in old epochs and count for nothing: no need to clear them.
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
