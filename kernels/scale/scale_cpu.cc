#include "kernels/cpu.h"
#include "kernels/scale/scale.h"

namespace lockstep::cpu {
namespace {

void ScaleCpu(Stream, const Tensor& x, double alpha, const Tensor& y, bool accumulate) {
  DispatchFloat("scale", x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Acc<T>;
    const T* in = x.data<T>();
    T* out = y.data<T>();
    const A factor = static_cast<A>(alpha);
    ParallelFor(x.numel(), kElementwiseGrain, [=](int64_t begin, int64_t end) {
      if (accumulate) {
        for (int64_t i = begin; i < end; ++i) {
          out[i] = Convert<T>(Convert<A>(out[i]) + factor * Convert<A>(in[i]));
        }
      } else {
        for (int64_t i = begin; i < end; ++i) out[i] = Convert<T>(factor * Convert<A>(in[i]));
      }
    });
  });
}

LS_REGISTER(scale_slot, DeviceType::kCpu, ScaleCpu);

}  // namespace
}  // namespace lockstep::cpu
