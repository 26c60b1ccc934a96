// A block of threads: its warps, shared memory, barriers, and whose turn it is.
#ifndef CUDASIM_PTX_BLOCK_H_
#define CUDASIM_PTX_BLOCK_H_

#include <array>
#include <csetjmp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tools/cudasim/ptx/detectors/races.h"
#include "tools/cudasim/ptx/launch.h"
#include "tools/cudasim/ptx/warp.h"

namespace cudasim {
namespace ptx {

class Tally;

// Where %ctaid and the like lie in the files of their values.
enum class BlockValue {
  kNtidX,
  kNtidY,
  kNtidZ,
  kCtaidX,
  kCtaidY,
  kCtaidZ,
  kNctaidX,
  kNctaidY,
  kNctaidZ,
  kNwarpid,
  kDynamicShared,
  kDynamicSharedBytes,
  kWorkspaceHigh,
  kWorkspaceLow,
  kCount
};
enum class WarpValue {
  kTidX,
  kTidY,
  kTidZ,
  kLaneid,
  kWarpid,
  kLanesEq,
  kLanesLt,
  kLanesLe,
  kLanesGt,
  kLanesGe,
  kCount
};
inline Slot SlotOf(BlockValue value) {
  return MakeSlot(kBlockValues, 128 * static_cast<size_t>(value));
}
inline Slot SlotOf(WarpValue value) {
  return MakeSlot(kWarpValues, 128 * static_cast<size_t>(value));
}

// Random numbers for schedules (xorshift64*).
class Random {
 public:
  explicit Random(uint64_t seed = 1) : state_(seed * 0x9e3779b97f4a7c15u | 1) {}
  uint64_t Below(uint64_t limit) {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return (state_ * 0x2545f4914f6cdd1du >> 16) % limit;
  }

 private:
  uint64_t state_;
};

class Block {
 public:
  // For the blocks of a launch, which must outlive them. Keeps the memory of launches before it.
  void Prepare(const Launch& launch, const Settings& settings);
  // After Prepare: looks for races.
  void Watch(GridRaces* grid) { races_ = std::make_unique<Races>(grid); }
  // After Prepare: counts what its warps do.
  void CountIn(Tally* tally) { tally_ = tally; }
  // After Prepare: where the blocks of a cooperative launch meet.
  void SetWorkspace(uint64_t address);
  // Makes it the block of the grid with this number.
  void Begin(uint64_t number);
  // Runs the warps, each until it waits or yields. Returns whether all are done; with `once`, after
  // one turn of each.
  bool Run(bool once);

  // The block that this thread runs; null elsewhere.
  static Block* Running();
  // For handlers of signals, while it runs: ends the grid for a fault at a global address.
  [[noreturn]] void Leave(uintptr_t address, Bug bug, std::string&& text);

  // What instructions use.
  std::byte* shared() const { return shared_.data(); }
  uint32_t shared_bytes() const { return shared_bytes_; }
  const std::byte* parameters() const { return launch_->parameters.data(); }
  uint32_t parameter_bytes() const { return static_cast<uint32_t>(launch_->parameters.size()); }
  const Settings& settings() const { return *settings_; }
  // Null unless races are sought: see Watch.
  Races* races() const { return races_.get(); }
  // Null unless instructions are counted: see CountIn.
  Tally* tally() const { return tally_; }
  // The instruction that a fault at a global address is to be reported of.
  void SetAccessing(const Instruction* i) { accessing_ = i; }
  // Recently accessed global memory, by the instruction's `access`.
  Extent& CachedExtent(const Instruction* i) {
    SetAccessing(i);
    return extents_[i->access % extents_.size()];
  }

  // Arrival of a warp at one of the 16 barriers, which opens after so many threads (0: all). It
  // waits there, or goes on (bar.arrive).
  void Arrive(const Warp& warp, int barrier, uint32_t threads, uint32_t votes, bool waits);
  struct Votes {
    uint32_t for_it = 0, threads = 0;
  };
  // When a barrier opened for the last time.
  Votes LastVotes(int barrier) const { return barriers_[barrier].last; }

  // "kernel K, block (0,0,0) of (4,1,1), thread (3,0,0) of (64,1,1)".
  std::string NameThread(const Warp& warp, int lane) const;
  // "thread (3,0,0)", of a block with this number; " of block (1,0,0)" unless it is this one.
  std::string NameOther(uint32_t block, uint32_t thread) const;
  // In a random order, true once in n times.
  bool Chance(uint64_t n) {
    return settings_->order == Settings::Order::kRandom && random_.Below(n) == 0;
  }

 private:
  struct Barrier {
    uint32_t arrived = 0, expected = 0;  // warps; expected 0: all
    Votes votes, last;
  };

  void SetValue(BlockValue value, uint32_t x);
  void SetWarpValues(const Warp& warp);
  bool TakeTurns(bool once);
  void Turn(Warp* warp);
  bool OpenBarriers();
  bool Opens(const Barrier& barrier) const;
  [[noreturn]] void FailDeadlock();
  [[noreturn]] void FailExited(int barrier);
  [[noreturn]] void FailLeft();

  const Launch* launch_ = nullptr;
  const Settings* settings_ = nullptr;
  Size index_;
  Random random_;
  std::vector<std::unique_ptr<Warp>> warps_;
  size_t warp_count_ = 0;
  std::vector<uint32_t> order_;  // of turns
  LaneMemory shared_, registers_, local_, block_values_, warp_values_;
  uint32_t shared_bytes_ = 0;
  std::array<Barrier, 16> barriers_;
  std::unique_ptr<Races> races_;
  Tally* tally_ = nullptr;
  std::array<Extent, 256> extents_ = {};
  uint32_t running_ = 0;  // warps that are not done
  // What earlier launches have left: the shape for which the warps' values hold, and the settings'
  // count of changes for which the extents do (0: none).
  Size shape_{0, 0, 0};
  uint64_t changes_ = 0;
  // For faults: whose turn it is, its last instruction that has accessed global memory, where to
  // go, and with what.
  Warp* turn_ = nullptr;
  const Instruction* accessing_ = nullptr;
  std::jmp_buf leave_;
  struct {
    uintptr_t address;
    Bug bug;
    std::string text;
  } left_;
};

}  // namespace ptx
}  // namespace cudasim

#endif  // CUDASIM_PTX_BLOCK_H_
