// Elementwise loops over several strided tensors of the same shape.
#pragma once

#include <array>
#include <type_traits>

#include "core/tensor.h"
#include "core/thread_pool.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/simd.h"

namespace lockstep::cpu {

// Row-major loops over K operands. Neighbouring dimensions that all operands step through evenly
// are merged, so contiguous tensors are one dimension.
template <int K>
struct StridedLoop {
  struct Dim {
    int64_t size;
    std::array<int64_t, K> steps;
  };
  int ndim = 0;
  std::array<Dim, Shape::kMaxDims> dims;
  int64_t numel = 1;

  StridedLoop(const Shape& shape, const std::array<const Shape*, K>& strides) {
    for (int i = 0; i < shape.ndim(); ++i) {
      numel *= shape[i];
      if (shape[i] == 1) continue;
      Dim dim{shape[i], {}};
      for (int k = 0; k < K; ++k) dim.steps[k] = (*strides[k])[i];
      if (ndim > 0 && Merges(dims[ndim - 1], dim)) {
        dim.size *= dims[ndim - 1].size;
        --ndim;
      }
      dims[ndim++] = dim;
    }
    if (ndim == 0) dims[ndim++] = {1, {}};
  }

  // Calls f(offsets, n, steps) for runs along the last dimension that cover all elements, in
  // parallel; offsets and steps are in elements, one for each operand.
  template <class F>
  void Run(const F& f) const {
    ParallelFor(numel, kElementwiseGrain, [&](int64_t begin, int64_t end) {
      const Dim& last = dims[ndim - 1];
      while (begin < end) {
        const int64_t at = begin % last.size;
        const int64_t n = std::min(end - begin, last.size - at);
        f(Offsets(begin), n, last.steps);
        begin += n;
      }
    });
  }

 private:
  static bool Merges(const Dim& outer, const Dim& inner) {
    for (int k = 0; k < K; ++k) {
      if (outer.steps[k] != inner.steps[k] * inner.size) return false;
    }
    return true;
  }

  std::array<int64_t, K> Offsets(int64_t index) const {
    std::array<int64_t, K> offsets{};
    for (int i = ndim - 1; i >= 0; --i) {
      for (int k = 0; k < K; ++k) offsets[k] += index % dims[i].size * dims[i].steps[k];
      index /= dims[i].size;
    }
    return offsets;
  }
};

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
