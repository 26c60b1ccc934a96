// Which elements a dropout mask keeps; shared by all devices and by ops that fuse dropout.
#pragma once

#include <cstdint>

#include "core/philox.h"

namespace lockstep {

// The Philox stream of a site at a step. Steps of one site never share a stream; streams of two
// sites are effectively independent (the finaliser of Steele et al.'s SplitMix64, a bijection).
LS_HOST_DEVICE constexpr uint64_t DropoutStream(uint64_t site, int64_t step) {
  uint64_t z = site + 0x9E3779B97F4A7C15ull * (static_cast<uint64_t>(step) + 1);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

// Element `index` of the unsharded tensor of the whole batch is kept if the upper 24 bits of
// Philox(seed).At(stream, index) are at least this.
LS_HOST_DEVICE constexpr uint32_t DropoutThreshold(double p) {
  return static_cast<uint32_t>(p * 16777216.0 + 0.5);
}
LS_HOST_DEVICE constexpr bool DropoutKeeps(uint32_t random, uint32_t threshold) {
  return (random >> 8) >= threshold;
}
// The same with number `index` mod 4 of a block. The block is not indexed: that would put it into a
// GPU's local memory.
LS_HOST_DEVICE constexpr bool DropoutKeeps(const Philox::Block& random, uint64_t index,
                                           uint32_t threshold) {
  const uint32_t low = (index & 1) == 0 ? random.v[0] : random.v[1];
  const uint32_t high = (index & 1) == 0 ? random.v[2] : random.v[3];
  return DropoutKeeps((index & 2) == 0 ? low : high, threshold);
}

}  // namespace lockstep
