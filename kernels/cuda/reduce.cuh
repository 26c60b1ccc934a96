// Sums and maxima over a warp or a block, in an order that depends on nothing but the position of
// the threads: the same bits in every run, on every device, in every order of execution.
#pragma once

namespace lockstep::cuda {

inline constexpr int kWarpSize = 32;
inline constexpr unsigned kFullWarp = 0xffffffffu;

// The thread's warp in a one-dimensional block, by lane 0: so nvcc knows that it is the same in the
// whole warp, and that a branch on it does not make the warp diverge. All 32 lanes of the warp must
// call it.
__device__ inline int WarpOfBlock() {
  return __shfl_sync(kFullWarp, static_cast<int>(threadIdx.x) / kWarpSize, 0);
}

struct SumOp {
  template <class A>
  __device__ A operator()(A a, A b) const {
    return a + b;
  }
};

// NaN wins, so that it is not lost on the way.
struct MaxOp {
  template <class A>
  __device__ A operator()(A a, A b) const {
    return a > b || a != a ? a : b;
  }
};

// Reduces over groups of `Width` neighbouring lanes (a power of two); every lane gets the group's
// result. All 32 lanes of the warp must call it. The butterfly adds a + b on one side and b + a on
// the other: equal bits.
template <int Width = kWarpSize, class A, class Op>
__device__ inline A WarpReduce(A x, const Op& op) {
#pragma unroll
  for (int offset = Width / 2; offset > 0; offset /= 2) {
    x = op(x, __shfl_xor_sync(kFullWarp, x, offset));
  }
  return x;
}
template <int Width = kWarpSize, class A>
__device__ inline A WarpSum(A x) {
  return WarpReduce<Width>(x, SumOp());
}
template <int Width = kWarpSize, class A>
__device__ inline A WarpMax(A x) {
  return WarpReduce<Width>(x, MaxOp());
}

// Reduces over a block of `Threads` threads (a multiple of 32, one-dimensional); every thread gets
// the result. All threads of the block must call it; `scratch` is shared memory of Threads / 32
// elements. Each warp is reduced first, then every warp reduces the warps' results. Synchronises on
// entry as well, so that the scratch may be used again, or for something else, right after.
template <int Threads, class A, class Op>
__device__ inline A BlockReduce(A x, const Op& op, A* scratch, A identity) {
  static_assert(Threads % kWarpSize == 0 && Threads <= 1024);
  constexpr int kWarps = Threads / kWarpSize;
  x = WarpReduce(x, op);
  if constexpr (kWarps == 1) return x;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  __syncthreads();
  if (lane == 0) scratch[warp] = x;
  __syncthreads();
  return WarpReduce(lane < kWarps ? scratch[lane] : identity, op);
}
template <int Threads, class A>
__device__ inline A BlockSum(A x, A* scratch) {
  return BlockReduce<Threads>(x, SumOp(), scratch, A(0));
}
// The maximum of values that are not below `lowest`.
template <int Threads, class A>
__device__ inline A BlockMax(A x, A* scratch, A lowest) {
  return BlockReduce<Threads>(x, MaxOp(), scratch, lowest);
}

}  // namespace lockstep::cuda
