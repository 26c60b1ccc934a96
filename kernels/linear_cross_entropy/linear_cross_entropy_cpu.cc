#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/simd.h"
#include "kernels/linear_cross_entropy/linear_cross_entropy.h"

namespace lockstep::cpu {
namespace {

template <class A, class T>
void ScaleInPlace(A factor, int64_t n, T* y) {
  VectorisedParallelFor(n, kElementwiseGrain, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) y[i] = Convert<T>(Convert<A>(y[i]) * factor);
  });
}

template <class A, class T, class Y>
void ScaleInto(const T* grad, A factor, int64_t n, bool accumulate, Y* y) {
  using Wide = std::common_type_t<A, Acc<Y>>;
  VectorisedParallelFor(n, kElementwiseGrain, [=](int64_t begin, int64_t end) {
    if (accumulate) {
      for (int64_t i = begin; i < end; ++i) {
        y[i] = Convert<Y>(Convert<Wide>(y[i]) + Convert<Wide>(Convert<A>(grad[i]) * factor));
      }
    } else {
      for (int64_t i = begin; i < end; ++i) y[i] = Convert<Y>(Convert<A>(grad[i]) * factor);
    }
  });
}

void BackwardCpu(Stream, const LinearCrossEntropyBackwardArgs& args) {
  DispatchFloat("linear_cross_entropy", args.grad.dtype(), [&]<class T>(TypeTag<T>) {
    using A = Acc<T>;
    const A factor = *args.upstream.data<A>() * *args.scale.data<A>();
    const int64_t n = args.y.numel();
    if (n == 0) return;
    if (args.grad.raw_data() == args.y.raw_data()) return ScaleInPlace(factor, n, args.y.data<T>());
    DispatchFloat("linear_cross_entropy", args.y.dtype(), [&]<class Y>(TypeTag<Y>) {
      ScaleInto(args.grad.data<T>(), factor, n, args.accumulate, args.y.data<Y>());
    });
  });
}

LS_REGISTER(linear_cross_entropy_backward, DeviceType::kCpu, BackwardCpu);

}  // namespace
}  // namespace lockstep::cpu
