// How the CPU's allocator, and the pool of large page-locked blocks, round sizes.
#pragma once

#include <bit>
#include <cstdint>

namespace lockstep {

// The size of a block for `bytes` bytes. There are at most eight size classes per power of two, so
// that freed blocks find new users (at most 12.5% is wasted). A freed block serves only its class.
inline int64_t CpuSizeClass(int64_t bytes) {
  constexpr int64_t kAlignment = 64;
  if (bytes <= 512) return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  const int64_t step = std::bit_floor(static_cast<uint64_t>(bytes - 1)) / 8;
  return (bytes + step - 1) / step * step;
}

}  // namespace lockstep
