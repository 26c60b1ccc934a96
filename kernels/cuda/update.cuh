// One launch over the elements of many parameters: the loop of an elementwise update.
#pragma once

#include <algorithm>
#include <new>
#include <span>
#include <vector>

#include "core/cuda/launch.h"
#include "kernels/cuda/rows.cuh"
#include "kernels/update.h"

namespace lockstep::cuda {

inline constexpr int kUpdateThreads = 256;
inline constexpr int64_t kUpdateChunk = 8192;  // elements of a block

// One parameter as a kernel sees it. The table of a launch travels in the kernel's arguments, of
// which every GPU takes 4 KiB: nothing is copied, so a captured graph keeps its own.
struct UpdateTensor {
  void* value;     // null where the original is the value
  void* original;  // what is updated: the value, or the f32 master of a 16-bit value
  const void* grad;
  void* state[kMostStates];
  int64_t n;
  double weight_decay, lr_factor;
  uint64_t parameter;  // this and `place` for stochastic rounding
  ElementPlace place;
  int first_block;  // of the grid
  bool aligned;     // all pointers start a 16-byte access
};
inline constexpr int kTableTensors = 35;
struct UpdateTable {
  UpdateTensor tensors[kTableTensors];
  int count;
};
static_assert(sizeof(UpdateTable) <= 4000, "leaves room for a kernel's other arguments");

// The last tensor whose blocks begin at or before `block`.
__device__ inline int FindTensor(const UpdateTable& table, int block) {
  int low = 0, high = table.count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (table.tensors[middle].first_block <= block) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// Four neighbours in one access: 16 bytes of f32, 8 of 16-bit floats.
__device__ inline void Read(const float* p, float (&x)[4]) {
  const float4 v = *reinterpret_cast<const float4*>(p);
  x[0] = v.x;
  x[1] = v.y;
  x[2] = v.z;
  x[3] = v.w;
}
template <class T>
__device__ inline void Read(const T* p, float (&x)[4]) {
  static_assert(kIs16Bit<T>);
  const uint2 raw = *reinterpret_cast<const uint2*>(p);
  T v[4];
  memcpy(static_cast<void*>(v), &raw, sizeof(raw));
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = ToFloat(v[i]);
}
__device__ inline void Write(float* p, const float (&x)[4]) {
  __stwb(reinterpret_cast<float4*>(p), make_float4(x[0], x[1], x[2], x[3]));
}
template <class T>
__device__ inline void Write(T* p, const float (&x)[4]) {
  static_assert(kIs16Bit<T>);
  T v[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] = Convert<T>(x[i]);
  uint2 raw;
  memcpy(&raw, v, sizeof(raw));
  __stwb(reinterpret_cast<uint2*>(p), raw);
}

// Rounds x[i], element begin + i of a tensor, stochastically to what bf16 holds, so that Convert is
// exact. Four neighbours need one block of random numbers, or two.
__device__ inline void RoundToBF16(const StepValues& values, const UpdateTensor& t, int tensor,
                                   int64_t begin, float (&x)[4]) {
  const RoundingNumbers numbers(values, t.parameter, tensor);
  uint64_t drawn = RoundingNumbers::BlockOf(t.place.At(begin));
  Philox::Block block = numbers.Draw(drawn);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint64_t element = t.place.At(begin + i);
    if (RoundingNumbers::BlockOf(element) != drawn) {
      drawn = RoundingNumbers::BlockOf(element);
      block = numbers.Draw(drawn);
    }
    const uint32_t bits = static_cast<uint32_t>(__float_as_int(x[i]));
    const uint32_t upper = RoundStochastically(bits, RoundingNumbers::In(block, element));
    x[i] = __int_as_float(static_cast<int>(upper << 16));
  }
}

// Updates the elements of a table's tensors by a Rule (kernels/update.h).
// Does nothing where values->found_inf is set. One pass over memory, four elements at a time.
// T, P, G and S are the types of the value, the original, the gradient and the states.
// Grid: one block per kUpdateChunk elements of a tensor. Shared memory: the coefficients, which one
// thread computes in f64. Deterministic: every element by one thread. States that are rounded take
// more registers than a third block would leave (0: as the compiler likes).
template <class Rule, class T, class P, class G, class S>
__global__ void __launch_bounds__(kUpdateThreads, std::is_same_v<S, bf16> ? 2 : 0)
    UpdateKernel(UpdateTable table, typename Rule::Hyper hyper, const StepValues* values) {
  using Coefficients = typename Rule::template Coefficients<float>;
  struct alignas(16) Bytes {
    unsigned char at[sizeof(Coefficients)];
  };
  __shared__ Bytes shared[1];
  if (values->found_inf != 0) return;
  const UpdateTensor& t = table.tensors[FindTensor(table, static_cast<int>(blockIdx.x))];
  if (threadIdx.x == 0) {
    const double lr = static_cast<double>(values->lr) * t.lr_factor;
    new (shared[0].at) Coefficients(*values, hyper, lr, t.weight_decay);
  }
  __syncthreads();
  const Coefficients c = *reinterpret_cast<const Coefficients*>(shared[0].at);

  constexpr int N = 4, kStates = Rule::kStates;
  const int64_t begin = (static_cast<int>(blockIdx.x) - t.first_block) * kUpdateChunk;
  const int64_t end = Min(begin + kUpdateChunk, t.n);
  T* value = static_cast<T*>(t.value);
  P* original = static_cast<P*>(t.original);
  const G* grad = static_cast<const G*>(t.grad);
  for (int64_t at = begin + threadIdx.x * N; at < end; at += kUpdateThreads * N) {
    const int n = CountWithin<N>(at, end);
    float p[N], g[N], s[N][kMostStates];
    if (t.aligned && n == N) {
      Read(original + at, p);
      Read(grad + at, g);
#pragma unroll
      for (int k = 0; k < kStates; ++k) {
        float state[N];
        Read(static_cast<const S*>(t.state[k]) + at, state);
#pragma unroll
        for (int i = 0; i < N; ++i) s[i][k] = state[i];
      }
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        p[i] = i < n ? ToFloat(original[at + i]) : 0.0f;
        g[i] = i < n ? ToFloat(grad[at + i]) : 0.0f;
#pragma unroll
        for (int k = 0; k < kStates; ++k) {
          s[i][k] = i < n ? ToFloat(static_cast<const S*>(t.state[k])[at + i]) : 0.0f;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < N; ++i) Rule::Element(c, g[i], p[i], s[i]);
    if constexpr (std::is_same_v<P, bf16>) RoundToBF16(*values, t, 0, at, p);
    if constexpr (std::is_same_v<S, bf16>) {
#pragma unroll
      for (int k = 0; k < kStates; ++k) {
        float state[N];
#pragma unroll
        for (int i = 0; i < N; ++i) state[i] = s[i][k];
        RoundToBF16(*values, t, 1 + k, at, state);
#pragma unroll
        for (int i = 0; i < N; ++i) s[i][k] = state[i];
      }
    }
    if (t.aligned && n == N) {
      Write(original + at, p);
      if constexpr (!std::is_same_v<T, P>) Write(value + at, p);
#pragma unroll
      for (int k = 0; k < kStates; ++k) {
        float state[N];
#pragma unroll
        for (int i = 0; i < N; ++i) state[i] = s[i][k];
        Write(static_cast<S*>(t.state[k]) + at, state);
      }
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        if (i >= n) break;
        original[at + i] = Convert<P>(p[i]);
        if constexpr (!std::is_same_v<T, P>) value[at + i] = Convert<T>(p[i]);
#pragma unroll
        for (int k = 0; k < kStates; ++k) {
          static_cast<S*>(t.state[k])[at + i] = Convert<S>(s[i][k]);
        }
      }
    }
  }
}

// Updates all tensors by a Rule. As many launches as there are combinations of dtypes, and tables.
template <class Rule>
void UpdateAll(Stream stream, std::span<const UpdateTensors> tensors,
               const typename Rule::Hyper& hyper, const StepValues* values) {
  static_assert(Rule::kStates <= kMostStates);
  struct Kinds {
    DType value, grad;
    bool master, narrow;
    bool operator==(const Kinds&) const = default;
  };
  const auto kinds_of = [](const UpdateTensors& t) {
    return Kinds{t.value.dtype(), t.grad.dtype(), t.master.defined(),
                 !t.states.empty() && t.states[0].dtype() == DType::kBF16};
  };
  std::vector<Kinds> all;
  for (const UpdateTensors& t : tensors) {
    if (std::find(all.begin(), all.end(), kinds_of(t)) == all.end()) all.push_back(kinds_of(t));
  }
  const auto run = [&]<class T, class P, class G, class S>(const Kinds& kinds, TypeTag<T>,
                                                           TypeTag<P>, TypeTag<G>, TypeTag<S>) {
    UpdateTable table{};
    int blocks = 0;
    const auto flush = [&] {
      Launch(Rule::kName, UpdateKernel<Rule, T, P, G, S>, static_cast<unsigned>(blocks),
             kUpdateThreads, 0, stream, table, hyper, values);
      table.count = blocks = 0;
    };
    for (const UpdateTensors& t : tensors) {
      if (kinds_of(t) != kinds || t.value.numel() == 0) continue;
      const int64_t needed = DivideUp(t.value.numel(), kUpdateChunk);
      if (table.count == kTableTensors || blocks + needed > INT32_MAX) flush();
      UpdateTensor& entry = table.tensors[table.count++];
      entry = {};
      entry.original = t.value.raw_data();
      if constexpr (!std::is_same_v<T, P>) {
        entry.value = t.value.raw_data();
        entry.original = t.master.raw_data();
      }
      entry.grad = t.grad.raw_data();
      entry.n = t.value.numel();
      entry.weight_decay = t.weight_decay;
      entry.lr_factor = t.lr_factor;
      entry.parameter = t.parameter;
      entry.place = t.place;
      entry.first_block = blocks;
      entry.aligned = AllAligned16(entry.value, entry.original, entry.grad);
      for (int k = 0; k < Rule::kStates; ++k) {
        entry.state[k] = Data<S>(t.states[k]);
        entry.aligned = entry.aligned && IsAligned16(entry.state[k]);
      }
      blocks += Blocks(t.value.numel(), kUpdateChunk);
    }
    flush();
  };
  for (const Kinds& kinds : all) {
    DispatchFloat(Rule::kName, kinds.value, [&]<class T>(TypeTag<T> value_tag) {
      DispatchFloat(Rule::kName, kinds.grad, [&](auto grad_tag) {
        const auto with_states = [&](auto original_tag) {
          if constexpr (Rule::kStates > 0) {
            if (kinds.narrow) {
              return run(kinds, value_tag, original_tag, grad_tag, TypeTag<bf16>());
            }
          }
          run(kinds, value_tag, original_tag, grad_tag, TypeTag<float>());
        };
        if constexpr (kIs16Bit<T>) {
          if (kinds.master) return with_states(TypeTag<float>());
        }
        if constexpr (!std::is_same_v<T, f16>) with_states(value_tag);
      });
    });
  }
}

}  // namespace lockstep::cuda
