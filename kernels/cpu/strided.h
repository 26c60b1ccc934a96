// Elementwise loops over several strided tensors of the same shape.
#pragma once

#include <type_traits>

#include "core/thread_pool.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/simd.h"
#include "kernels/strided.h"

namespace lockstep::cpu {

// Calls f(offsets, n, steps) for runs along the last dimension that cover all of `numel` elements,
// in parallel; offsets and steps are in elements, one for each tensor.
template <int K, class F>
void ForEachRun(int64_t numel, const StridedDims<K>& dims, const F& f) {
  ParallelFor(numel, kElementwiseGrain, [&](int64_t begin, int64_t end) {
    int64_t offsets[K], steps[K];
    for (int k = 0; k < K; ++k) steps[k] = dims.inner_step(k);
    while (begin < end) {
      const int64_t n = std::min(end - begin, dims.inner_size() - begin % dims.inner_size());
      dims.Offsets(begin, offsets);
      f(offsets, n, steps);
      begin += n;
    }
  });
}

// Calls f(step_a, step_b) with compile-time steps where they are 0 or 1 and T is fast, so that
// loops vectorise.
using Zero = std::integral_constant<int64_t, 0>;
using One = std::integral_constant<int64_t, 1>;
template <class T, class F>
void DispatchSteps(int64_t step_a, int64_t step_b, F&& f) {
  if constexpr (kIsFast<T>) {
    if (step_a == 1 && step_b == 1) return f(One(), One());
    if (step_a == 1 && step_b == 0) return f(One(), Zero());
    if (step_a == 0 && step_b == 1) return f(Zero(), One());
  }
  return f(step_a, step_b);
}

}  // namespace lockstep::cpu
