// How problems are divided among blocks and threads.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

#include "core/cuda/launch.h"
#include "core/error.h"
#include "core/round_up.h"

namespace lockstep::cuda {

// Threads of an elementwise kernel's block.
inline constexpr int kElementwiseThreads = 256;

template <class T>
__host__ __device__ constexpr T Min(T a, T b) {
  return b < a ? b : a;
}

// a / b for 0 <= a < 2^32 and 0 < b < 2^32: a dozen instructions. A 64-bit division calls a
// function of a hundred.
__host__ __device__ inline int64_t DivideSmall(int64_t a, int64_t b) {
  return static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
}

// How many of the N elements from `begin` on are among the first n; begin < n.
template <int N>
__device__ inline int CountWithin(int64_t begin, int64_t n) {
  return static_cast<int>(Min<int64_t>(n - begin, N));
}

// The grid's x for `items`, `per_block` per block; 0 for none.
inline unsigned Blocks(int64_t items, int64_t per_block) {
  const int64_t blocks = DivideUp(items, per_block);
  LS_CHECK(blocks <= INT32_MAX, items, " are more than a grid can have (2^31 - 1 blocks of ",
           per_block, ")");
  return static_cast<unsigned>(blocks);
}

// Launches an elementwise kernel, of `threads` threads and without shared memory.
template <class... Params, class... Args>
void LaunchThreads(const LaunchName& name, void (*kernel)(Params...), int64_t threads,
                   Stream stream, Args&&... args) {
  Launch(name, kernel, Blocks(threads, kElementwiseThreads), kElementwiseThreads, 0, stream,
         std::forward<Args>(args)...);
}

// The thread's number in a one-dimensional grid.
__device__ inline int64_t GlobalThread() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

}  // namespace lockstep::cuda
