// Rounding f32 to bf16 at random, so that what is lost on the average is nothing: Gupta et al.,
// "Deep learning with limited numerical precision" (ICML 2015). Usable from .cu files.
#pragma once

#include <cstdint>

#include "core/philox.h"
#include "core/shard_layout.h"
#include "core/step_state.h"

namespace lockstep {

// The bits of the bf16 below or above an f32, in magnitude: above with the probability of the
// f32's distance from the one below, for a uniform 16-bit `random`. So the expectation is the f32,
// and what bf16 can hold stays. NaN stays NaN, infinity stays; what lies between the largest number
// and 2^128 may become infinity.
LS_HOST_DEVICE constexpr uint16_t RoundStochastically(uint32_t f32_bits, uint32_t random) {
  const bool finite = (f32_bits & 0x7f800000u) != 0x7f800000u;
  const uint32_t nan = (f32_bits & 0x7fffffffu) > 0x7f800000u ? 0x40u : 0u;
  return static_cast<uint16_t>(finite ? (f32_bits + random) >> 16 : f32_bits >> 16 | nan);
}

// Where the elements of a part of a parameter are in the whole parameter, both in row-major order:
// element i is number first + j / run * stride + j % run there, with j = i + skip. By default the
// part is the whole.
struct ElementPlace {
  int64_t skip = 0, first = 0, run = INT64_MAX, stride = 0;

  LS_HOST_DEVICE constexpr uint64_t At(int64_t i) const {
    const int64_t j = i + skip;
    return static_cast<uint64_t>(j < run ? first + j : first + j / run * stride + j % run);
  }
};

// The place of the part that a layout gives. Throws ArgumentError where no ElementPlace describes
// it: unequal segments, or cuts of two dimensions.
ElementPlace PlaceOf(const ShardLayout& layout, const Shape& whole);

// The random numbers of one tensor of a parameter's update: a function of (seed, step, parameter,
// tensor, element of the whole parameter), so rounding depends on neither ranks, sharding, threads
// nor device. Eight elements share a block of Philox, 16 bits each.
struct RoundingNumbers {
  Philox philox;
  uint64_t stream;

  // `parameter`: the hash of its name. `tensor`: 0 the value, 1 + k state k.
  LS_HOST_DEVICE RoundingNumbers(const StepValues& values, uint64_t parameter, int tensor)
      : philox(values.seed),
        stream(StepStream(parameter + static_cast<uint64_t>(tensor), values.step)) {}

  static LS_HOST_DEVICE constexpr uint64_t BlockOf(uint64_t element) { return element >> 3; }
  LS_HOST_DEVICE Philox::Block Draw(uint64_t block) const { return philox(stream, block); }
  static LS_HOST_DEVICE constexpr uint32_t In(const Philox::Block& block, uint64_t element) {
    // The block is not indexed: that would put it into a GPU's local memory.
    const uint32_t low = (element & 2) == 0 ? block.v[0] : block.v[1];
    const uint32_t high = (element & 2) == 0 ? block.v[2] : block.v[3];
    const uint32_t word = (element & 4) == 0 ? low : high;
    return (element & 1) == 0 ? word & 0xffffu : word >> 16;
  }
  LS_HOST_DEVICE uint32_t At(uint64_t element) const { return In(Draw(BlockOf(element)), element); }
};

}  // namespace lockstep
