#include "kernels/cpu/elementwise.h"
#include "kernels/scale/scale.h"

namespace lockstep::cpu {
namespace {

template <class T, class F>
void Apply(const Tensor& x, const Tensor& y, bool accumulate, F f) {
  using A = Acc<T>;
  const T* in = x.data<T>();
  T* out = y.data<T>();
  ParallelFor(x.numel(), kElementwiseGrain, [=](int64_t begin, int64_t end) {
    WriteOrAdd(accumulate, begin, end, out, [=](int64_t i) { return f(Convert<A>(in[i])); });
  });
}

void ScaleCpu(Stream, const Tensor& x, ScaleBy by, double alpha, const Tensor& y, bool accumulate) {
  DispatchFloat("scale", x.dtype(), [&]<class T>(TypeTag<T>) {
    using A = Acc<T>;
    const A a = static_cast<A>(alpha);
    if (by == ScaleBy::kFactor) {
      Apply<T>(x, y, accumulate, [a](A v) { return a * v; });
    } else {
      Apply<T>(x, y, accumulate, [a](A v) { return v / a; });
    }
  });
}

LS_REGISTER(scale_slot, DeviceType::kCpu, ScaleCpu);

}  // namespace
}  // namespace lockstep::cpu
