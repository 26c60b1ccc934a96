// Watches memory, if Settings::find_races: races in shared and global memory, between any two
// threads of a grid, whether or not they collide in this run; reads of shared memory that was never
// written; and accesses to what cp.async has yet to copy.
//
// The last two reads and writes of every four bytes are remembered. Later ones displace them, so
// that races of more threads can be missed; a race that is reported is one.
#ifndef CUDASIM_PTX_DETECTORS_RACES_H_
#define CUDASIM_PTX_DETECTORS_RACES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "cudasim/access.h"
#include "tools/cudasim/ptx/detectors/clocks.h"
#include "tools/cudasim/ptx/program.h"

namespace cudasim {
namespace ptx {

struct Settings;

// An access to some of four bytes.
struct Access {
  Time time = 0;  // 0: none
  uint32_t block = 0;
  uint16_t thread = 0;
  uint8_t bytes = 0;    // a bit for each
  bool strong = false;  // as its site
  uint32_t site = 0;
};

struct Cell {
  Access writes[2], reads[2];
};

// An instruction that accesses memory.
struct Site {
  const Program* program;
  const Instruction* at;
  bool reads, writes;
  bool copies;    // cp.async: reads global and writes shared memory
  bool strong;    // atomic, volatile and the like: these do not race with each other
  bool for_all;   // .. not even in different blocks
  bool is_fence;  // has release semantics of its own
  bool constant;  // ld.global.nc, which must not read what its kernel has written
  uint32_t used;  // a bit for each byte of a load, unless its register is never used
};

// What the blocks of a grid share; they must run on one thread of the operating system.
class GridRaces {
 public:
  GridClock clock;
  // Null for memory that a grid touches after its first 32 MB.
  Cell* CellOf(uint64_t address);
  uint32_t SiteOf(const Warp& warp, const Instruction* i);
  const Site& site(uint32_t number) const { return sites_[number]; }

 private:
  static constexpr uint64_t kPageBytes = 4096;
  static constexpr size_t kMaxPages = 8192;

  std::unordered_map<uint64_t, std::unique_ptr<Cell[]>> pages_;
  uint64_t last_page_ = ~uint64_t{0};
  Cell* last_cells_ = nullptr;
  std::unordered_map<const Instruction*, uint32_t> numbers_;
  std::vector<Site> sites_;
};

// Of a block.
class Races {
 public:
  explicit Races(GridRaces* grid) : grid_(grid), clocks_(&grid->clock) {}
  Races(const Races&) = delete;
  Races& operator=(const Races&) = delete;
  void Begin(uint32_t block, size_t warps, size_t shared_bytes);
  // Fails if shared memory was read and not written, not even later by another thread.
  void End();

  // Accesses of `bytes` bytes by each active lane. They fail the warp if something is wrong.
  void CheckShared(const Warp& warp, const Instruction* i, const uint64_t* offsets, uint32_t bytes);
  void CheckGlobal(const Warp& warp, const Instruction* i, const uint64_t* at, uint32_t bytes);
  // What cp.async has copied is there, after this wait.
  void CheckArrival(const Warp& warp, const Instruction* wait, const AsyncCopy& copy);

  Clocks& clocks() { return clocks_; }
  // In place of the block's: so every access takes the way on which it is watched.
  Extent& CachedExtent(const Instruction* i) { return extents_[i->access % extents_.size()]; }

 private:
  enum class State : uint8_t { kNeverWritten, kWritten, kBeingCopied };
  // One of the sides of an access by a lane.
  struct Side {
    const Warp& warp;
    const Instruction* i;
    int lane;
    uint32_t site;
    bool writes;
    bool shared;
  };

  void Touch(const Side& side, uint64_t at, uint32_t bytes);
  void TouchCell(const Side& side, Cell* cell, const Access& access, uint64_t at);
  void CheckState(const Side& side, uint64_t offset, uint32_t bytes);
  bool Conflicts(const Side& side, const Access& before, const Access& access) const;
  std::string Name(const Side& side, const Access& other) const;
  [[noreturn]] void FailRace(const Side& side, const Access& before, bool before_writes,
                             uint64_t at) const;

  GridRaces* grid_;
  Clocks clocks_;
  uint32_t block_ = 0;
  std::vector<Cell> cells_;    // of shared memory
  std::vector<State> states_;  // of its bytes
  std::string never_written_;  // the first read of what is not written: a report
  std::array<Extent, 256> extents_ = {};
};

}  // namespace ptx
}  // namespace cudasim

#endif  // CUDASIM_PTX_DETECTORS_RACES_H_
