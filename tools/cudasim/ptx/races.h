// Finds races in shared memory: two warps of a block access the same four bytes, one of them
// writes, and no barrier lies between. Whether they collide in this run does not matter.
#ifndef CUDASIM_PTX_RACES_H_
#define CUDASIM_PTX_RACES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tools/cudasim/ptx/program.h"

namespace cudasim {
namespace ptx {

class SharedRaces {
 public:
  void Begin(size_t bytes);  // of a block
  // The warps have met at a barrier. Those of a part of the block count, too: some races are
  // missed.
  void NextPhase() { ++phase_; }
  // An access of `bytes` bytes by each active lane. Fails the warp if it is part of a race. Atomic
  // and volatile accesses race with others only. cp.async writes when it begins.
  void Check(const Warp& warp, const Instruction* i, const uint64_t* offsets, uint32_t bytes);

 private:
  struct Access {
    uint32_t phase = 0;  // 0: none
    uint32_t warp = 0;
    bool atomic = false;
    bool several = false;  // warps
    const Program* program = nullptr;
    const Instruction* at = nullptr;
  };
  struct Word {
    Access read, write;
  };
  bool Conflicts(const Access& earlier, const Access& access) const {
    return earlier.phase == phase_ && (earlier.several || earlier.warp != access.warp) &&
           !(earlier.atomic && access.atomic);
  }

  uint32_t phase_ = 0;
  std::vector<Word> words_;
};

}  // namespace ptx
}  // namespace cudasim

#endif  // CUDASIM_PTX_RACES_H_
