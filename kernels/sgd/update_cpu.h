// Loops over the elements of many parameters at once, for optimizers.
#pragma once

#include <span>
#include <vector>

#include "kernels/cpu/elementwise.h"

namespace lockstep::cpu {

// Calls f(tensors[i], begin, end) for ranges that cover each tensors[i].value, in parallel: small
// parameters share the threads with large ones.
template <class Tensors, class F>
void ForEachChunk(std::span<const Tensors> tensors, const F& f) {
  struct Chunk {
    const Tensors* tensors;
    int64_t begin, end;
  };
  std::vector<Chunk> chunks;
  for (const Tensors& t : tensors) {
    const int64_t n = t.value.numel();
    for (int64_t at = 0; at < n; at += kElementwiseGrain) {
      chunks.push_back({&t, at, std::min(n, at + kElementwiseGrain)});
    }
  }
  ParallelFor(static_cast<int64_t>(chunks.size()), 1, [&](int64_t i, int64_t end) {
    for (; i < end; ++i) f(*chunks[i].tensors, chunks[i].begin, chunks[i].end);
  });
}

// Calls f(TypeTag<A>(), value, original, grad) with pointers to element `begin` of t.value (null,
// if the value is itself the original), of what the update is computed on (the f32 master of a
// 16-bit value, else the value), and of t.grad. A is the type of the state.
template <class Tensors, class F>
void DispatchUpdate(const char* op, const Tensors& t, int64_t begin, const F& f) {
  DispatchFloat(op, t.value.dtype(), [&](auto value_tag) {
    using T = typename decltype(value_tag)::type;
    DispatchFloat(op, t.grad.dtype(), [&](auto grad_tag) {
      using G = typename decltype(grad_tag)::type;
      const G* grad = t.grad.template data<G>() + begin;
      T* value = t.value.template data<T>() + begin;
      if constexpr (sizeof(T) == 2) {
        if (t.master.defined()) {
          return f(TypeTag<Acc<T>>(), value, t.master.template data<float>() + begin, grad);
        }
      }
      f(TypeTag<Acc<T>>(), static_cast<T*>(nullptr), value, grad);
    });
  });
}

// The loop of an update: element(p, grad, i) changes p, the parameter in the type A.
template <class A, class T, class P, class G, class F>
void UpdateElements(int64_t n, T* __restrict value, P* __restrict original,
                    const G* __restrict grad, const F& element) {
  for (int64_t i = 0; i < n; ++i) {
    A p = Convert<A>(original[i]);
    element(p, Convert<A>(grad[i]), i);
    original[i] = Convert<P>(p);
    if constexpr (!std::is_same_v<T, P>) value[i] = Convert<T>(p);
  }
}

}  // namespace lockstep::cpu
