#include "kernels/dropout/dropout_cpu.h"

#include "kernels/cpu/elementwise.h"
#include "kernels/dropout/dropout.h"

namespace lockstep::cpu {
namespace {

// out = in * mask / (1 - p), or out += that.
template <class T, bool accumulate>
void ApplyMask(const T* in, int64_t n, const ElementMask& mask, T* out) {
  using A = Acc<T>;
  const A scale = static_cast<A>(mask.scale());
  ParallelFor(n, kElementwiseGrain, [=](int64_t begin, int64_t end) {
    const T* from = in + begin;
    T* to = out + begin;
    mask.ForEach(begin, end - begin, [=](int64_t i, bool keeps) {
      const A kept = Convert<A>(from[i]) * scale;
      const A y = keeps ? kept : A(0);
      to[i] = Convert<T>(accumulate ? Convert<A>(to[i]) + y : y);
    });
  });
}

void DropoutForwardCpu(Stream, const Tensor& x, int64_t samples, SamplePart part, double p,
                       uint64_t site, const StepValues* values, const Tensor& y,
                       const Tensor& key) {
  int64_t* k = key.data<int64_t>();
  WriteDropoutKey(*values, site, k);
  if (x.numel() == 0) return;
  DispatchFloat("dropout", x.dtype(), [&]<class T>(TypeTag<T>) {
    ApplyMask<T, false>(x.data<T>(), x.numel(), {k, p, x.numel() / samples, part}, y.data<T>());
  });
}

void DropoutBackwardCpu(Stream, const Tensor& dy, int64_t samples, SamplePart part, double p,
                        const Tensor& key, const Tensor& dx, bool accumulate) {
  if (dy.numel() == 0) return;
  const ElementMask mask(key.data<int64_t>(), p, dy.numel() / samples, part);
  DispatchFloat("dropout", dy.dtype(), [&]<class T>(TypeTag<T>) {
    const auto apply = accumulate ? ApplyMask<T, true> : ApplyMask<T, false>;
    apply(dy.data<T>(), dy.numel(), mask, dx.data<T>());
  });
}

LS_REGISTER(dropout_forward, DeviceType::kCpu, DropoutForwardCpu);
LS_REGISTER(dropout_backward, DeviceType::kCpu, DropoutBackwardCpu);

}  // namespace
}  // namespace lockstep::cpu
