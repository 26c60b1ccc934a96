#include "kernels/cpu.h"
#include "kernels/cpu_philox.h"
#include "kernels/dropout/dropout.h"
#include "kernels/dropout/dropout_mask.h"

namespace lockstep::cpu {
namespace {

// out = in * mask / (1 - p), or out += that. Samples lie one after the other in memory as in the
// whole batch's tensor, so element i has the number first_sample * (elements per sample) + i.
template <class T, bool accumulate>
void ApplyMask(const T* in, int64_t n, int64_t per_sample, double p, const int64_t* key, T* out) {
  using A = Acc<T>;
  const Philox philox(static_cast<uint64_t>(key[0]));
  const uint64_t stream = static_cast<uint64_t>(key[1]);
  const uint64_t first = static_cast<uint64_t>(key[2]) * static_cast<uint64_t>(per_sample);
  const uint32_t threshold = DropoutThreshold(p);
  const A scale = static_cast<A>(1 / (1 - p));
  ParallelFor(n, kElementwiseGrain, [=](int64_t begin, int64_t end) {
    ForEachRandom(philox, stream, first + static_cast<uint64_t>(begin), end - begin,
                  [=](int64_t i, int64_t count, const uint32_t* random) {
                    const T* from = in + begin + i;
                    T* to = out + begin + i;
                    for (int64_t k = 0; k < count; ++k) {
                      const A kept = Convert<A>(from[k]) * scale;
                      const A y = DropoutKeeps(random[k], threshold) ? kept : A(0);
                      to[k] = Convert<T>(accumulate ? Convert<A>(to[k]) + y : y);
                    }
                  });
  });
}

void DropoutForwardCpu(Stream, const Tensor& x, int64_t samples, double p, uint64_t site,
                       const StepValues* values, const Tensor& y, const Tensor& key) {
  int64_t* k = key.data<int64_t>();
  k[0] = static_cast<int64_t>(values->seed);
  k[1] = static_cast<int64_t>(DropoutStream(site, values->step));
  k[2] = values->first_sample;
  if (x.numel() == 0) return;
  DispatchFloat("dropout", x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    ApplyMask<T, false>(x.data<T>(), x.numel(), x.numel() / samples, p, k, y.data<T>());
  });
}

void DropoutBackwardCpu(Stream, const Tensor& dy, int64_t samples, double p, const Tensor& key,
                        const Tensor& dx, bool accumulate) {
  if (dy.numel() == 0) return;
  DispatchFloat("dropout", dy.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto apply = accumulate ? ApplyMask<T, true> : ApplyMask<T, false>;
    apply(dy.data<T>(), dy.numel(), dy.numel() / samples, p, key.data<int64_t>(), dx.data<T>());
  });
}

LS_REGISTER(dropout_forward, DeviceType::kCpu, DropoutForwardCpu);
LS_REGISTER(dropout_backward, DeviceType::kCpu, DropoutBackwardCpu);

}  // namespace
}  // namespace lockstep::cpu
