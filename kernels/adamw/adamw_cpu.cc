#include <vector>

#include "kernels/adamw/adamw_math.h"
#include "kernels/cpu.h"
#include "kernels/cpu_simd.h"

namespace lockstep::cpu {
namespace {

// T: the value's element; P: the element that is updated, T itself or the f32 master's.
template <class T, class P, class G>
void UpdateElements(const AdamWCoefficients<Acc<T>>& coefficients, int64_t n, T* __restrict value,
                    P* __restrict original, const G* __restrict grad, Acc<T>* __restrict exp_avg,
                    Acc<T>* __restrict exp_avg_sq) {
  using A = Acc<T>;
  const AdamWCoefficients<A> c = coefficients;
  for (int64_t i = 0; i < n; ++i) {
    A p = Convert<A>(original[i]), m = exp_avg[i], v = exp_avg_sq[i];
    AdamWElement(c, Convert<A>(grad[i]), p, m, v);
    original[i] = Convert<P>(p);
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    if constexpr (!std::is_same_v<T, P>) value[i] = Convert<T>(p);
  }
}

void UpdateRange(const AdamWTensors& t, const AdamWHyper& hyper, const StepValues& values,
                 int64_t begin, int64_t end) {
  DispatchFloat("adamw", t.value.dtype(), [&](auto value_tag) {
    using T = typename decltype(value_tag)::type;
    const AdamWCoefficients<Acc<T>> c(values, hyper, t.weight_decay);
    DispatchFloat("adamw", t.grad.dtype(), [&](auto grad_tag) {
      using G = typename decltype(grad_tag)::type;
      const auto update = [&](T* value, auto* original) {
        const G* grad = t.grad.data<G>() + begin;
        Acc<T>* exp_avg = t.exp_avg.data<Acc<T>>() + begin;
        Acc<T>* exp_avg_sq = t.exp_avg_sq.data<Acc<T>>() + begin;
        Vectorised(
            [=] { UpdateElements(c, end - begin, value, original, grad, exp_avg, exp_avg_sq); });
      };
      T* value = t.value.data<T>() + begin;
      if constexpr (sizeof(T) == 2) {
        if (t.master.defined()) return update(value, t.master.data<float>() + begin);
      }
      update(nullptr, value);
    });
  });
}

struct Chunk {
  const AdamWTensors* tensors;
  int64_t begin, end;
};

void AdamWUpdateCpu(Stream, std::span<const AdamWTensors> tensors, const AdamWHyper& hyper,
                    const StepValues* values) {
  if (values->found_inf != 0) return;
  std::vector<Chunk> chunks;
  for (const AdamWTensors& t : tensors) {
    const int64_t n = t.value.numel();
    for (int64_t at = 0; at < n; at += kElementwiseGrain) {
      chunks.push_back({&t, at, std::min(n, at + kElementwiseGrain)});
    }
  }
  ParallelFor(static_cast<int64_t>(chunks.size()), 1, [&](int64_t i, int64_t end) {
    for (; i < end; ++i) {
      UpdateRange(*chunks[i].tensors, hyper, *values, chunks[i].begin, chunks[i].end);
    }
  });
}

LS_REGISTER(adamw_update, DeviceType::kCpu, AdamWUpdateCpu);

}  // namespace
}  // namespace lockstep::cpu
