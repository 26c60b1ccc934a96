// Rounding of sizes.
#pragma once

#include <bit>
#include <cstdint>

namespace lockstep {

// For numbers that are not negative.
constexpr int64_t DivideUp(int64_t n, int64_t by) { return (n + by - 1) / by; }
constexpr int64_t RoundUp(int64_t n, int64_t multiple) { return DivideUp(n, multiple) * multiple; }

// The size of a block of the CPU's allocator, or of the pool of large page-locked blocks, for
// `bytes` bytes. There are at most eight size classes per power of two, so that freed blocks find
// new users (at most 12.5% is wasted). A freed block serves only its class.
inline int64_t CpuSizeClass(int64_t bytes) {
  constexpr int64_t kAlignment = 64;
  if (bytes <= 512) return RoundUp(bytes, kAlignment);
  return RoundUp(bytes, std::bit_floor(static_cast<uint64_t>(bytes - 1)) / 8);
}

}  // namespace lockstep
