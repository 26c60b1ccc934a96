// Masks of dropout on CUDA, for ops that fuse it.
#pragma once

#include "core/step_state.h"
#include "kernels/cuda/packed.cuh"
#include "kernels/dropout/dropout_mask.h"

namespace lockstep::cuda {

// What is known at launch.
struct DropoutSetting {
  uint32_t threshold;
  float scale;  // of kept elements
  // In the elements of a sample: where the tensor's begin, and how many there are in all.
  int64_t begin, whole;
  // Where the tensor has a part of each sample, how many elements it lacks, and 2^64 divided by how
  // many it has, rounded up: the upper half of its product with i is i / per_sample, while i times
  // per_sample is below 2^64. (A division would be a call.) 0: samples are whole.
  uint64_t gap, reciprocal;
};
inline DropoutSetting MakeDropoutSetting(double p, int64_t per_sample, SamplePart part) {
  const int64_t whole = part.Whole(per_sample), gap = whole - per_sample;
  const bool cut = gap != 0 && per_sample > 0;
  LS_CHECK(!cut || per_sample > 1, "dropout: the part of a sample must have two elements or more");
  return {DropoutThreshold(p),
          static_cast<float>(1 / (1 - p)),
          part.begin,
          whole,
          static_cast<uint64_t>(gap),
          cut ? UINT64_MAX / static_cast<uint64_t>(per_sample) + 1 : 0};
}

// The mask of a contiguous tensor.
struct ElementMask {
  uint64_t seed, stream;
  uint64_t first;  // number of element 0 in the tensor of the whole batch
  uint32_t threshold;
  float scale;
  uint64_t gap, reciprocal;  // as in DropoutSetting

  // The number of an element in the tensor of the whole batch.
  __device__ uint64_t Number(int64_t i) const {
    const auto sample = static_cast<unsigned __int128>(static_cast<uint64_t>(i)) * reciprocal >> 64;
    return first + static_cast<uint64_t>(i) + static_cast<uint64_t>(sample) * gap;
  }
};

__device__ inline ElementMask MakeMask(const DropoutSetting& in, uint64_t seed, uint64_t stream,
                                       int64_t first_sample) {
  return {seed,         stream,   static_cast<uint64_t>(first_sample * in.whole + in.begin),
          in.threshold, in.scale, in.gap,
          in.reciprocal};
}

// As forward draws it; `first_thread` writes the key for backward, i64[kDropoutKeySize].
__device__ inline ElementMask DrawMask(const DropoutSetting& in, const StepValues* values,
                                       uint64_t site, bool first_thread, int64_t* key) {
  const uint64_t stream = StepStream(site, values->step);
  const int64_t first_sample = values->first_sample;
  if (first_thread) {
    key[0] = static_cast<int64_t>(values->seed);
    key[1] = static_cast<int64_t>(stream);
    key[2] = first_sample;
  }
  return MakeMask(in, values->seed, stream, first_sample);
}
// The same again, from the key.
__device__ inline ElementMask RedrawMask(const DropoutSetting& in, const int64_t* key) {
  return MakeMask(in, static_cast<uint64_t>(key[0]), static_cast<uint64_t>(key[1]), key[2]);
}

// Multiplies the pack that starts at element `begin` by the mask. Four neighbouring elements share
// a block of random numbers: kWhole says that packs begin with a block, that is, that `begin`, the
// elements per sample and the numbers of a SamplePart are multiples of four. Otherwise each element
// checks whether a new one begins, which takes twice the registers.
template <bool kWhole, int N>
__device__ inline void ApplyMask(const ElementMask& mask, int64_t begin, float (&x)[N]) {
  const Philox philox(mask.seed);
  const uint64_t element = mask.Number(begin);
  if constexpr (kWhole) {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      const Philox::Block block = philox(mask.stream, (element + static_cast<uint64_t>(i)) >> 2);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        x[i + k] = DropoutKeeps(block.v[k], mask.threshold) ? x[i + k] * mask.scale : 0.0f;
      }
    }
  } else {
    uint64_t number = element >> 2;
    Philox::Block block = philox(mask.stream, number);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const uint64_t e =
          mask.gap == 0 ? element + static_cast<uint64_t>(i) : mask.Number(begin + i);
      if (e >> 2 != number) {
        number = e >> 2;
        block = philox(mask.stream, number);
      }
      x[i] = DropoutKeeps(block, e, mask.threshold) ? x[i] * mask.scale : 0.0f;
    }
  }
}

}  // namespace lockstep::cuda
