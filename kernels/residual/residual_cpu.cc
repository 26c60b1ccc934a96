#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/simd.h"
#include "kernels/residual/residual.h"

namespace lockstep::cpu {
namespace {

void ResidualForwardCpu(Stream, const Tensor& x, const Tensor& branch, const Tensor& y) {
  DispatchFloat("residual", x.dtype(), [&]<class T>(TypeTag<T>) {
    using A = Acc<T>;
    const T *a = x.data<T>(), *b = branch.data<T>();
    T* out = y.data<T>();
    VectorisedParallelFor<T>(x.numel(), kElementwiseGrain, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        out[i] = Convert<T>(Convert<A>(a[i]) + Convert<A>(b[i]));
      }
    });
  });
}

LS_REGISTER(residual_forward, DeviceType::kCpu, ResidualForwardCpu);

}  // namespace
}  // namespace lockstep::cpu
