// cp.async. A copy's bytes arrive as late as they may, so that a kernel that does not wait for them
// never finds them.
#include <cstring>

#include "tools/cudasim/ptx/addresses.h"
#include "tools/cudasim/ptx/memory.h"

namespace cudasim {
namespace ptx {

const Instruction* BeginCopy(Warp& warp, const Instruction* i) {
  const uint32_t bytes = i->count;
  uint64_t to[kLanes], from[kLanes];
  Instruction at = *i;  // to read each side's addresses
  at.a = i->d;
  at.imm = static_cast<uint32_t>(i->imm);
  ReadAddresses<uint32_t>(warp, &at, to);
  CheckOffsets(warp, i, Space::kShared, to, bytes, warp.block->shared_bytes());
  at.a = i->a;
  at.imm = static_cast<uint64_t>(static_cast<int64_t>(i->imm) >> 32);
  ReadAddresses<uint64_t>(warp, &at, from);
  const uint32_t* const present = warp.Lanes<uint32_t>(i->b);
  // A source of which nothing is copied may be anything.
  uint32_t reading = 0;
  for (int k = 0; k < kLanes; ++k) reading |= static_cast<uint32_t>(present[k] != 0) << k;
  const uint32_t mask = warp.mask;
  reading &= mask;
  if (reading != 0) {
    for (int k = 0; k < kLanes; ++k) {
      if ((reading >> k & 1) == 0) from[k] = from[__builtin_ctz(reading)];
    }
    warp.mask = reading;
    CheckGlobal(warp, i, from, bytes);
    warp.mask = mask;
  }
  for (int lane : LanesOf(warp.mask)) {
    if (present[lane] > bytes) {
      warp.Fail(Bug::kOther, i, lane, "cp.async copies more bytes than it has");
    }
    std::memset(warp.block->shared() + to[lane], 0xff, bytes);
    warp.copies.push_back({static_cast<uint32_t>(to[lane]),
                           reinterpret_cast<const void*>(from[lane]), static_cast<uint8_t>(bytes),
                           static_cast<uint8_t>(present[lane]), static_cast<uint8_t>(lane),
                           warp.copy_groups[lane], i});
  }
  return warp.AfterAccess(i);
}

const Instruction* CommitCopies(Warp& warp, const Instruction* i) {
  for (int k = 0; k < kLanes; ++k) warp.copy_groups[k] += warp.mask >> k & 1;
  return i + 1;
}

const Instruction* WaitForCopies(Warp& warp, const Instruction* i) {
  size_t kept = 0;
  for (const AsyncCopy& copy : warp.copies) {
    if ((warp.mask >> copy.lane & 1) == 0 || warp.copy_groups[copy.lane] - copy.group <= i->imm) {
      warp.copies[kept++] = copy;
      continue;
    }
    std::byte* const to = warp.block->shared() + copy.to;
    warp.block->SetAccessing(copy.at);
    if (copy.bytes == 16 && copy.present == 16) {
      std::memcpy(to, copy.from, 16);
    } else {
      std::memset(to, 0, copy.bytes);
      std::memcpy(to, copy.from, copy.present);
    }
    if (warp.block->races() != nullptr) warp.block->races()->CheckArrival(warp, i, copy);
  }
  warp.copies.resize(kept);
  return warp.AfterAccess(i);
}

}  // namespace ptx
}  // namespace cudasim
