// The loop of an elementwise update over the elements of many parameters.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <span>
#include <vector>

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/philox.h"
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
  ParallelForEach(std::ssize(chunks), 1,
                  [&](int64_t i) { f(*chunks[i].tensors, chunks[i].begin, chunks[i].end); });
}

// Calls f(value, original, grad, state) with pointers to element `begin` of t.value (null, if the
// value is itself the original), of what the update is computed on (the f32 master of a 16-bit
// value, else the value), and of t.grad, and with the TypeTag of the states.
template <class F>
void DispatchUpdate(const char* op, const UpdateTensors& t, int64_t begin, const F& f) {
  const bool narrow = !t.states.empty() && t.states[0].dtype() == DType::kBF16;
  DispatchFloat(op, t.value.dtype(), [&]<class T>(TypeTag<T>) {
    DispatchFloat(op, t.grad.dtype(), [&]<class G>(TypeTag<G>) {
      const G* grad = t.grad.data<G>() + begin;
      T* value = t.value.data<T>() + begin;
      const auto with_states = [&](T* to, auto* original) {
        if constexpr (!std::is_same_v<T, double>) {
          if (narrow) return f(to, original, grad, TypeTag<BF16>());
        }
        f(to, original, grad, TypeTag<Acc<T>>());
      };
      if constexpr (sizeof(T) == 2) {
        if (t.master.defined()) return with_states(value, t.master.data<float>() + begin);
      }
      if constexpr (!std::is_same_v<T, F16>) with_states(nullptr, value);
    });
  });
}

// Elements whose random numbers are drawn at a time.
inline constexpr int64_t kRoundingBlock = 1024;

// random[i] = the number of element begin + i of a part at `place`, for i in [0, n).
inline void DrawRounding(const RoundingNumbers& numbers, const ElementPlace& place, int64_t begin,
                         int64_t n, uint16_t* random) {
  constexpr uint64_t kPerBatch = 8 * kPhiloxBatch;
  for (int64_t i = 0; i < n;) {
    const uint64_t element = place.At(begin + i), skip = element % 8;
    const int64_t in_run = place.run - (begin + i + place.skip) % place.run;
    const int64_t count = std::min({n - i, in_run, static_cast<int64_t>(kPerBatch - skip)});
    if (count < 8) {  // a batch would be a waste
      for (int64_t k = 0; k < count; ++k) {
        random[i + k] = static_cast<uint16_t>(numbers.At(element + static_cast<uint64_t>(k)));
      }
    } else {
      alignas(64) uint32_t batch[4 * kPhiloxBatch];
      PhiloxBatch(numbers.philox, numbers.stream, RoundingNumbers::BlockOf(element), batch);
      // x86 and ARM store the lower half of a word, which belongs to the first of two elements,
      // first.
      static_assert(std::endian::native == std::endian::little);
      std::memcpy(random + i, reinterpret_cast<const uint16_t*>(batch) + skip,
                  static_cast<size_t>(count) * sizeof(uint16_t));
    }
    i += count;
  }
}

// x as To: exact, or rounded stochastically to bf16 by random[i].
template <class To, class A>
To Narrow(A x, const uint16_t* random, int64_t i) {
  if constexpr (std::is_same_v<To, BF16>) {
    BF16 y;
    y.bits = RoundStochastically(std::bit_cast<uint32_t>(x), random[i]);
    return y;
  } else {
    static_assert(std::is_same_v<To, A>);
    return x;
  }
}

template <class Rule, class A, class T, class P, class S, class G>
void UpdateElements(const typename Rule::template Coefficients<A>& c, int64_t n,
                    T* __restrict value, P* __restrict original, const G* __restrict grad,
                    std::array<S*, kMostStates> states,
                    const uint16_t (*__restrict random)[kRoundingBlock]) {
  for (int64_t i = 0; i < n; ++i) {
    A p = Convert<A>(original[i]), s[kMostStates];
    for (int k = 0; k < Rule::kStates; ++k) s[k] = Convert<A>(states[k][i]);
    Rule::Element(c, Convert<A>(grad[i]), p, s);
    original[i] = Narrow<P>(p, random[0], i);
    if constexpr (!std::is_same_v<T, P>) value[i] = Convert<T>(p);
    for (int k = 0; k < Rule::kStates; ++k) states[k][i] = Narrow<S>(s[k], random[1 + k], i);
  }
}

}  // namespace internal

// Updates all tensors by a Rule (kernels/update.h), unless values->found_inf is set.
template <class Rule>
void UpdateAll(Stream, std::span<const UpdateTensors> tensors, const typename Rule::Hyper& hyper,
               const StepValues* values) {
  if (values->found_inf != 0) return;
  internal::ForEachChunk(tensors, [&](const UpdateTensors& t, int64_t begin, int64_t end) {
    const auto update = [&]<class T, class P, class G, class S>(T* value, P* original,
                                                                const G* grad, TypeTag<S>) {
      using A = Acc<P>;
      const typename Rule::template Coefficients<A> c(
          *values, hyper, static_cast<double>(values->lr) * t.lr_factor, t.weight_decay);
      constexpr bool kRoundsValue = std::is_same_v<P, BF16>;
      constexpr bool kRoundsStates = std::is_same_v<S, BF16> && Rule::kStates > 0;
      constexpr bool kRounds = kRoundsValue || kRoundsStates;
      alignas(64) uint16_t random[1 + kMostStates][internal::kRoundingBlock];
      for (int64_t at = begin; at < end;) {
        const int64_t n = kRounds ? std::min(end - at, internal::kRoundingBlock) : end - at;
        for (int tensor = 0; tensor <= Rule::kStates; ++tensor) {
          if (!(tensor == 0 ? kRoundsValue : kRoundsStates)) continue;
          internal::DrawRounding({*values, t.parameter, tensor}, t.place, at, n, random[tensor]);
        }
        std::array<S*, kMostStates> states{};
        for (int k = 0; k < Rule::kStates; ++k) states[k] = t.states[k].template data<S>() + at;
        const int64_t from = at - begin;
        Vectorised<P>([=, &random] {
          internal::UpdateElements<Rule>(c, n, value == nullptr ? nullptr : value + from,
                                         original + from, grad + from, states, random);
        });
        at += n;
      }
    };
    internal::DispatchUpdate(Rule::kName, t, begin, update);
  });
}

}  // namespace lockstep::cpu
