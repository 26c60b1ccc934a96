#include <cmath>

#include "kernels/cpu/elementwise.h"
#include "own/softsign.h"

namespace own {
namespace {

using namespace lockstep;
using namespace lockstep::cpu;

void SoftsignForwardCpu(Stream, const Tensor& x, const Tensor& y) {
  DispatchFloat("softsign", x.dtype(), [&]<class T>(TypeTag<T>) {
    const T* in = x.data<T>();
    T* out = y.data<T>();
    ParallelFor(x.numel(), kElementwiseGrain, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const auto v = Convert<Acc<T>>(in[i]);
        out[i] = Convert<T>(v / (1 + std::abs(v)));
      }
    });
  });
}

void SoftsignBackwardCpu(Stream, const Tensor& x, const Tensor& dy, const Tensor& dx,
                         bool accumulate) {
  DispatchFloat("softsign", x.dtype(), [&]<class T>(TypeTag<T>) {
    using A = Acc<T>;
    const T *in = x.data<T>(), *grad = dy.data<T>();
    T* out = dx.data<T>();
    ParallelFor(x.numel(), kElementwiseGrain, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const A d = 1 + std::abs(Convert<A>(in[i]));
        const A before = accumulate ? Convert<A>(out[i]) : 0;
        out[i] = Convert<T>(before + Convert<A>(grad[i]) / (d * d));
      }
    });
  });
}

LS_REGISTER(softsign_forward, DeviceType::kCpu, SoftsignForwardCpu);
LS_REGISTER(softsign_backward, DeviceType::kCpu, SoftsignBackwardCpu);

}  // namespace
}  // namespace own
