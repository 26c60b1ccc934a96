// The loop of an elementwise update over the elements of many parameters.
#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/simd.h"
#include "kernels/update.h"

namespace lockstep::cpu {
namespace internal {

// Calls f(tensors[i], begin, end) for ranges that cover each tensors[i].value, in parallel: small
// parameters share the threads with large ones.
template <class F>
void ForEachChunk(std::span<const UpdateTensors> tensors, const F& f) {
  struct Chunk {
    const UpdateTensors* tensors;
    int64_t begin, end;
  };
  std::vector<Chunk> chunks;
  for (const UpdateTensors& t : tensors) {
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
template <class F>
void DispatchUpdate(const char* op, const UpdateTensors& t, int64_t begin, const F& f) {
  DispatchFloat(op, t.value.dtype(), [&](auto value_tag) {
    using T = typename decltype(value_tag)::type;
    DispatchFloat(op, t.grad.dtype(), [&](auto grad_tag) {
      using G = typename decltype(grad_tag)::type;
      const G* grad = t.grad.data<G>() + begin;
      T* value = t.value.data<T>() + begin;
      if constexpr (sizeof(T) == 2) {
        if (t.master.defined()) {
          return f(TypeTag<Acc<T>>(), value, t.master.data<float>() + begin, grad);
        }
      }
      f(TypeTag<Acc<T>>(), static_cast<T*>(nullptr), value, grad);
    });
  });
}

template <class Rule, class A, class T, class P, class G>
void UpdateElements(const typename Rule::template Coefficients<A>& c, int64_t n,
                    T* __restrict value, P* __restrict original, const G* __restrict grad,
                    std::array<A*, kMostStates> states) {
  for (int64_t i = 0; i < n; ++i) {
    A p = Convert<A>(original[i]), s[kMostStates];
    for (int k = 0; k < Rule::kStates; ++k) s[k] = states[k][i];
    Rule::Element(c, Convert<A>(grad[i]), p, s);
    original[i] = Convert<P>(p);
    if constexpr (!std::is_same_v<T, P>) value[i] = Convert<T>(p);
    for (int k = 0; k < Rule::kStates; ++k) states[k][i] = s[k];
  }
}

}  // namespace internal

// Updates all tensors by a Rule (kernels/update.h), unless values->found_inf is set.
template <class Rule>
void UpdateAll(Stream, std::span<const UpdateTensors> tensors, const typename Rule::Hyper& hyper,
               const StepValues* values) {
  if (values->found_inf != 0) return;
  internal::ForEachChunk(tensors, [&](const UpdateTensors& t, int64_t begin, int64_t end) {
    internal::DispatchUpdate(
        Rule::kName, t, begin, [&](auto tag, auto* value, auto* original, auto* grad) {
          using A = typename decltype(tag)::type;
          const typename Rule::template Coefficients<A> c(
              *values, hyper, static_cast<double>(values->lr) * t.lr_factor, t.weight_decay);
          std::array<A*, kMostStates> states{};
          for (int k = 0; k < Rule::kStates; ++k) states[k] = t.states[k].data<A>() + begin;
          Vectorised([=] {
            internal::UpdateElements<Rule>(c, end - begin, value, original, grad, states);
          });
        });
  });
}

}  // namespace lockstep::cpu
