// Which elements a dropout mask keeps; shared by all devices and by ops that fuse dropout.
#pragma once

#include <cstdint>

#include "core/philox.h"

namespace lockstep {

// Which part of each sample a tensor has: elements [begin, begin + its elements per sample) of the
// `of` that a sample has in the unsharded tensor. By default all of them.
struct SamplePart {
  int64_t begin = 0, of = 0;

  // The elements of a whole sample, of which the tensor has `here`.
  LS_HOST_DEVICE constexpr int64_t Whole(int64_t here) const { return of == 0 ? here : of; }
};

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
