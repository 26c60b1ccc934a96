// The maximum of a row and the sum of its exponentials, in one sweep (Milakov and Gimelshein,
// "Online normalizer calculation for softmax", 2018).
#pragma once

#include <cmath>

#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/rows.cuh"

namespace lockstep::cuda {

// The maximum of some numbers x, and the sum of e^(x - max). A NaN among them makes the sum NaN;
// numbers that are all -infinity have the sum 0.
struct MaxAndSum {
  float max = -INFINITY, sum = 0;

  // e^(max - larger), where `larger` is a maximum that includes this one.
  __device__ float Shrink(float larger) const {
    return max == -INFINITY ? 0.0f : expf(max - larger);
  }
};

// For a row of c elements, by the Threads threads of a block; all of them get the result.
// `scratch`: shared memory of 2 * Threads / 32 f32. The order of the sum depends only on c and
// Threads.
template <int Threads, bool kAligned, class T>
__device__ inline MaxAndSum RowMaxAndSum(const T* row, int64_t c, float* scratch) {
  constexpr int N = kPackSize<T>;
  MaxAndSum mine;
  ForEachPack<Threads, N, 0>(c, [&](int, int64_t at) {
    const Packed<T> x = LoadRow<kAligned, N>(row, at, c);
    MaxAndSum pack;
    ForEachElement<kAligned, N>(at, c, [&](int i) { pack.max = fmaxf(pack.max, ToFloat(x[i])); });
    const float max = fmaxf(mine.max, pack.max);
    mine.sum *= mine.Shrink(max);
    mine.max = max;
    ForEachElement<kAligned, N>(at, c, [&](int i) {
      const float v = ToFloat(x[i]);
      mine.sum += v == -INFINITY ? 0.0f : expf(v - max);
    });
  });
  const float max = BlockMax<Threads>(mine.max, scratch, -INFINITY);
  return {max, BlockSum<Threads>(mine.sum * mine.Shrink(max), scratch + Threads / kWarpSize)};
}

}  // namespace lockstep::cuda
