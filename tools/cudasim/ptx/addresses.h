// From a warp's addresses to the host's, after the checks of alignment and bounds.
#ifndef CUDASIM_PTX_ADDRESSES_H_
#define CUDASIM_PTX_ADDRESSES_H_

#include <cstdint>

#include "tools/cudasim/ptx/block.h"
#include "tools/cudasim/ptx/warp.h"

namespace cudasim {
namespace ptx {

struct Addresses {
  alignas(64) uintptr_t at[kLanes];
  template <typename T>
  T Load(int lane) const {
    T value;
    __builtin_memcpy(&value, reinterpret_cast<const void*>(at[lane]), sizeof(T));
    return value;
  }
  template <typename T>
  void Store(int lane, T value) const {
    __builtin_memcpy(reinterpret_cast<void*>(at[lane]), &value, sizeof(T));
  }
};

// The address in slot `a` plus the instruction's offset, as numbers of a space. A lane that does
// not run gets that of one that does.
template <typename A>
inline void ReadAddresses(const Warp& warp, const Instruction* i, uint64_t* out) {
  const A* const a = warp.Lanes<A>(i->a);
  const auto offset = static_cast<A>(i->imm);
  if (warp.mask == kAllLanes) [[likely]] {
    for (int k = 0; k < kLanes; ++k) out[k] = static_cast<A>(a[k] + offset);
  } else {
    const auto first = static_cast<A>(a[__builtin_ctz(warp.mask)] + offset);
    for (int k = 0; k < kLanes; ++k) {
      out[k] = warp.mask64[k] != 0 ? static_cast<A>(a[k] + offset) : first;
    }
  }
}

// Slow paths, which report what is wrong (addresses.cc).
void CheckGlobalLanes(Warp& warp, const Instruction* i, const uint64_t* at, uint32_t bytes);
[[noreturn]] void FailAccess(const Warp& warp, const Instruction* i, Space space,
                             const uint64_t* at, uint32_t bytes, uint64_t limit);
void ResolveGeneric(Warp& warp, const Instruction* i, uint64_t* at, uint32_t bytes);

inline void CheckGlobal(Warp& warp, const Instruction* i, const uint64_t* at, uint32_t bytes) {
  const Extent& extent = warp.block->CachedExtent(i);
  const uint64_t begin = extent.begin, last = extent.end - bytes;
  uint64_t alignment = 0, outside = extent.end - extent.begin < bytes ? ~uint64_t{0} : 0;
  for (int k = 0; k < kLanes; ++k) {
    alignment |= at[k];
    outside |= (at[k] - begin) | (last - at[k]);
  }
  if ((alignment & (bytes - 1)) != 0 || static_cast<int64_t>(outside) < 0) [[unlikely]] {
    CheckGlobalLanes(warp, i, at, bytes);
  }
}

// Of spaces whose addresses count from 0.
inline void CheckOffsets(const Warp& warp, const Instruction* i, Space space, const uint64_t* at,
                         uint32_t bytes, uint64_t limit) {
  uint64_t alignment = 0, outside = 0;
  const uint64_t last = limit - bytes;
  for (int k = 0; k < kLanes; ++k) {
    alignment |= at[k];
    outside |= at[k] | (last - at[k]);
  }
  if ((alignment & (bytes - 1)) != 0 || static_cast<int64_t>(outside) < 0) [[unlikely]] {
    FailAccess(warp, i, space, at, bytes, limit);
  }
  if (space == Space::kShared && warp.block->races() != nullptr) [[unlikely]] {
    warp.block->races()->CheckShared(warp, i, at, bytes);
  }
}

// Where each lane's `bytes` bytes lie.
template <Space kSpace, typename A>
inline void Resolve(Warp& warp, const Instruction* i, uint32_t bytes, Addresses* addresses) {
  uint64_t* const at = addresses->at;
  ReadAddresses<A>(warp, i, at);
  if constexpr (kSpace == Space::kGlobal || kSpace == Space::kConst) {
    CheckGlobal(warp, i, at, bytes);
  } else if constexpr (kSpace == Space::kShared) {
    CheckOffsets(warp, i, kSpace, at, bytes, warp.block->shared_bytes());
    const auto base = reinterpret_cast<uintptr_t>(warp.block->shared());
    for (int k = 0; k < kLanes; ++k) at[k] += base;
  } else if constexpr (kSpace == Space::kParam) {
    CheckOffsets(warp, i, kSpace, at, bytes, warp.block->parameter_bytes());
    const auto base = reinterpret_cast<uintptr_t>(warp.block->parameters());
    for (int k = 0; k < kLanes; ++k) at[k] += base;
  } else if constexpr (kSpace == Space::kLocal) {
    CheckOffsets(warp, i, kSpace, at, bytes, warp.local_stride);
    const auto base = reinterpret_cast<uintptr_t>(warp.local_memory);
    for (int k = 0; k < kLanes; ++k) at[k] += base + static_cast<uintptr_t>(k) * warp.local_stride;
  } else {
    ResolveGeneric(warp, i, at, bytes);
  }
}

// The same for any space: that of the instruction's option, which is OptionFor the space.
void ResolveAny(Warp& warp, const Instruction* i, uint32_t bytes, Addresses* addresses);
inline uint8_t OptionFor(Space space, bool wide) {
  return static_cast<uint8_t>(static_cast<int>(space) << 1 | static_cast<int>(wide));
}

}  // namespace ptx
}  // namespace cudasim

#endif  // CUDASIM_PTX_ADDRESSES_H_
