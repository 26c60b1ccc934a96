// The loops of a function of one tensor, element by element, and of its gradient.
#pragma once

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/simd.h"

namespace lockstep::cpu {

// y = function.Forward(x), computed in Acc<T>. x and y: contiguous, of type T and of the same size.
template <class T, class Function>
void ElementwiseForward(Function function, const Tensor& x, const Tensor& y) {
  const T* in = x.data<T>();
  T* out = y.data<T>();
  VectorisedParallelFor<T>(x.numel(), kElementwiseGrain, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      out[i] = Convert<T>(function.Forward(Convert<Acc<T>>(in[i])));
    }
  });
}

// dx (+)= dy function.Derivative(saved).
template <class T, class Function>
void ElementwiseBackward(Function function, const Tensor& saved, const Tensor& dy, const Tensor& dx,
                         bool accumulate) {
  using A = Acc<T>;
  const T* in = saved.data<T>();
  const T* grad = dy.data<T>();
  T* out = dx.data<T>();
  VectorisedParallelFor<T>(saved.numel(), kElementwiseGrain, [=](int64_t begin, int64_t end) {
    WriteOrAdd(accumulate, begin, end, out, [=](int64_t i) {
      return Convert<A>(grad[i]) * function.Derivative(Convert<A>(in[i]));
    });
  });
}

}  // namespace lockstep::cpu
