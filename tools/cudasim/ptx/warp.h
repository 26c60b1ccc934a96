// 32 threads that run together.
#ifndef CUDASIM_PTX_WARP_H_
#define CUDASIM_PTX_WARP_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cudasim/bug.h"
#include "tools/cudasim/ptx/program.h"

namespace cudasim {
namespace ptx {

class Block;

inline constexpr int kLanes = 32;
inline constexpr uint32_t kAllLanes = ~uint32_t{0};

// Lanes that wait at an instruction.
struct Group {
  uint32_t at;  // its number in the current function
  uint32_t mask;
};

// What a call puts aside.
struct Frame {
  std::byte* registers;
  const Program* program;
  const Instruction* next;
  uint32_t mask;
  uint32_t local;
  const Call* call;
  std::vector<Group> waiting;
};

// A copy that cp.async has begun.
struct AsyncCopy {
  uint32_t to;  // in shared memory
  const void* from;
  uint8_t bytes, present;  // what is not present becomes 0
  uint8_t lane;
  uint32_t group;
  const Instruction* at;
};

struct Warp {
  // The lanes that run. Those that diverged from them wait; those at the smallest instruction run
  // first, so that they meet again where the program's branches meet.
  uint32_t mask = 0;
  uint32_t live = 0;     // lanes that have not exited
  bool partial = false;  // mask != live: results must not touch the other lanes' registers
  uint32_t first_waiting = kAllLanes;  // of the groups that are not stuck, or below
  std::vector<Group> waiting;

  std::byte* files[4] = {};
  const Program* program = nullptr;
  const Instruction* code = nullptr;  // of the program
  Block* block = nullptr;

  enum class State : uint8_t { kRunning, kYielded, kAtBarrier, kDone };
  State state = State::kRunning;
  const Instruction* resume = nullptr;
  int64_t patience = 0;  // accesses to memory until it yields

  // The mask as lanes of -1 and 0; kept only while `partial`.
  alignas(64) std::array<int16_t, kLanes> mask16;
  alignas(64) std::array<int32_t, kLanes> mask32;
  alignas(64) std::array<int64_t, kLanes> mask64;

  // Local memory: `stride` bytes for each lane, of which the current call has those from `local`.
  std::byte* local_memory = nullptr;
  uint32_t local_stride = 0;
  uint32_t local = 0;
  std::vector<Frame> frames;
  std::vector<LaneMemory> frame_registers;  // by depth of calls

  std::vector<AsyncCopy> copies;                  // the oldest first
  std::array<uint32_t, kLanes> copy_groups = {};  // of each lane: that is open

  int barrier = 0;      // that it waits at
  uint32_t number = 0;  // in its block
  // Lanes that wait at an instruction that others must come to first; and which others, who
  // therefore must not exit.
  uint32_t stuck = 0, wanted = 0;
  uint32_t existing = 0;  // the lanes that it began with

  template <typename T>
  T* Lanes(Slot slot) const {
    return reinterpret_cast<T*>(files[slot & 3] + (slot & ~Slot{3}));
  }
  uint32_t& Predicate(Slot slot) const { return *Lanes<uint32_t>(slot); }

  template <size_t kBytes>
  const auto* LaneMask() const {
    if constexpr (kBytes == 2) {
      return mask16.data();
    } else if constexpr (kBytes == 4) {
      return mask32.data();
    } else {
      return mask64.data();
    }
  }

  void SetMask(uint32_t lanes);
  void AddWaiting(Group group);
  bool IsStuck(const Group& group) const { return (group.mask & stuck) != 0; }
  // Lets the waiting lanes at the smallest instruction run, of those that are not stuck unless all
  // are; there must be some.
  const Instruction* NextGroup();
  uint32_t NumberOf(const Instruction* instruction) const {
    return static_cast<uint32_t>(instruction - code);
  }

  // After an access to memory: the next instruction, or null if another warp's turn has come.
  const Instruction* AfterAccess(const Instruction* instruction) {
    if (--patience >= 0) [[likely]]
      return instruction + 1;
    return Yield(instruction + 1);
  }
  const Instruction* Yield(const Instruction* at);
  const Instruction* Wait(State why, const Instruction* at) {
    state = why;
    resume = at;
    return nullptr;
  }

  // A report that names the kernel, a thread, and the source's line; Fail ends the grid with it.
  std::string Message(const Instruction* at, int lane, const std::string& text) const;
  [[noreturn]] void Fail(Bug bug, const Instruction* at, int lane, const std::string& text) const;
};

// Applies value(k) to each active lane's register. The loop becomes vector code.
template <typename T, typename F>
inline __attribute__((always_inline)) void SetLanes(Warp& warp, Slot slot, F value) {
  T* const out = warp.Lanes<T>(slot);
  if (!warp.partial) [[likely]] {
#pragma GCC ivdep
    for (int k = 0; k < kLanes; ++k) out[k] = value(k);
  } else {
    const auto* const mask = warp.LaneMask<sizeof(T)>();
#pragma GCC ivdep
    for (int k = 0; k < kLanes; ++k) {
      const T result = value(k);
      out[k] = mask[k] != 0 ? result : out[k];
    }
  }
}

inline void SetPredicate(Warp& warp, Slot slot, uint32_t lanes) {
  uint32_t& predicate = warp.Predicate(slot);
  predicate = (predicate & ~warp.mask) | (lanes & warp.mask);
}

// The numbers of a mask's lanes: for (int lane : LanesOf(mask)).
class LanesOf {
 public:
  explicit LanesOf(uint32_t mask) : mask_(mask) {}
  struct Iterator {
    uint32_t mask;
    int operator*() const { return __builtin_ctz(mask); }
    Iterator& operator++() {
      mask &= mask - 1;
      return *this;
    }
    bool operator!=(const Iterator& other) const { return mask != other.mask; }
  };
  Iterator begin() const { return {mask_}; }
  Iterator end() const { return {0}; }

 private:
  uint32_t mask_;
};

}  // namespace ptx
}  // namespace cudasim

#endif  // CUDASIM_PTX_WARP_H_
