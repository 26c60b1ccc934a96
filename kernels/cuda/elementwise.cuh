// The kernel behind ops whose result's element i depends only on the inputs' elements i.
#pragma once

#include <algorithm>

#include "core/cuda/launch.h"
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/packed.cuh"

namespace lockstep::cuda {

namespace internal {

// Elements per thread: one 16-byte access of the smallest type, several of larger ones.
template <class... T>
inline constexpr int kElementwisePack = 16 / static_cast<int>(std::min({sizeof(T)...}));

template <bool accumulate, class F, class Out, int N, class... In>
__device__ inline void ElementwisePack(const F& f, Packed<Out, N>& y, const Packed<In, N>&... x) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float value = f(ToFloat(x[i])...);
    y[i] = Convert<Out>(accumulate ? ToFloat(y[i]) + value : value);
  }
}

// One pack per thread. Grid: as many blocks as packs need; no shared memory. Every element is
// written by one thread. `packed`: all pointers are aligned to 16 bytes; else elements are read one
// by one.
template <bool accumulate, class F, class Out, class... In>
__global__ void ElementwiseKernel(int64_t n, bool packed, F f, Out* out, const In*... in) {
  constexpr int N = kElementwisePack<Out, In...>;
  const int64_t begin = GlobalThread() * N;
  if (begin >= n) return;
  const int count = CountWithin<N>(begin, n);
  if (packed && count == N) {
    Packed<Out, N> y;
    if constexpr (accumulate) y = Load<Out, N>(out + begin);
    ElementwisePack<accumulate>(f, y, Load<In, N>(in + begin)...);
    Store(out + begin, y);
  } else {
    Packed<Out, N> y;
    if constexpr (accumulate) y = LoadSome<Out, N>(out + begin, count, Convert<Out>(0.0f));
    ElementwisePack<accumulate>(f, y, LoadSome<In, N>(in + begin, count, Convert<In>(0.0f))...);
    StoreSome(out + begin, y, count);
  }
}

}  // namespace internal

// out[i] = f(in[i]...), or out[i] += that, for i in [0, n). f is a functor of floats, copied to the
// device: struct { __device__ float operator()(float x) const; }. `out` may be one of the inputs.
// The pointers are f32, f16 or bf16; contiguous, of any alignment, which changes only the speed.
// accumulate: a bool, or std::false_type() where it never is.
template <class Accumulate, class F, class Out, class... In>
void Elementwise(const LaunchName& name, Stream stream, int64_t n, Accumulate accumulate,
                 const F& f, Out* out, const In*... in) {
  constexpr int kPerBlock = kElementwiseThreads * internal::kElementwisePack<Out, In...>;
  DispatchBool(accumulate, [&](auto flag) {
    constexpr bool kAccumulate = decltype(flag)::value;
    Launch(name, internal::ElementwiseKernel<kAccumulate, F, Out, In...>, Blocks(n, kPerBlock),
           kElementwiseThreads, 0, stream, n, AllAligned16(out, in...), f, out, in...);
  });
}

}  // namespace lockstep::cuda
