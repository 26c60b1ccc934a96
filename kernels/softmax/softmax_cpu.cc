#include <vector>

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/reduce.h"
#include "kernels/softmax/softmax.h"

namespace lockstep::cpu {
namespace {

void SoftmaxForwardCpu(Stream, bool logarithm, const Tensor& x, const Tensor& y) {
  DispatchFloat("softmax", x.dtype(), [&]<class T>(TypeTag<T>) {
    using A = Acc<T>;
    const int64_t n = x.dim(1);
    const T* in = x.data<T>();
    T* out = y.data<T>();
    ParallelFor(x.dim(0), GrainOf(n), [=](int64_t begin, int64_t end) {
      std::vector<A> powers(n);
      for (int64_t row = begin; row < end; ++row) {
        const T* from = in + row * n;
        T* to = out + row * n;
        // Ignores NaNs; the sum picks them up.
        const A max = MaxOver<A>(n, [=](int64_t i) { return Convert<A>(from[i]); });
        for (int64_t i = 0; i < n; ++i) powers[i] = Exp(Convert<A>(from[i]) - max);
        const A sum = PairwiseSum<A>(0, n, [&](int64_t i) { return powers[i]; });
        if (logarithm) {
          const A log_sum = Log(sum);
          for (int64_t i = 0; i < n; ++i) {
            to[i] = Convert<T>(Convert<A>(from[i]) - max - log_sum);
          }
        } else {
          const A factor = A(1) / sum;
          for (int64_t i = 0; i < n; ++i) to[i] = Convert<T>(powers[i] * factor);
        }
      }
    });
  });
}

template <bool kLogarithm, class T>
void BackwardRow(const T* y, const T* dy, T* dx, int64_t n, bool accumulate) {
  using A = Acc<T>;
  const A sum = PairwiseSum<A>(0, n, [=](int64_t i) {
    return kLogarithm ? Convert<A>(dy[i]) : Convert<A>(dy[i]) * Convert<A>(y[i]);
  });
  WriteOrAdd(accumulate, 0, n, dx, [=](int64_t i) {
    const A result = Convert<A>(y[i]), g = Convert<A>(dy[i]);
    return kLogarithm ? std::fma(-Exp(result), sum, g) : result * (g - sum);
  });
}

void SoftmaxBackwardCpu(Stream, bool logarithm, const Tensor& y, const Tensor& dy, const Tensor& dx,
                        bool accumulate) {
  DispatchFloat("softmax", y.dtype(), [&]<class T>(TypeTag<T>) {
    const int64_t n = y.dim(1);
    const T* result = y.data<T>();
    const T* grad = dy.data<T>();
    T* out = dx.data<T>();
    ParallelForEach(y.dim(0), GrainOf(n), [=](int64_t row) {
      const int64_t at = row * n;
      if (logarithm) {
        BackwardRow<true>(result + at, grad + at, out + at, n, accumulate);
      } else {
        BackwardRow<false>(result + at, grad + at, out + at, n, accumulate);
      }
    });
  });
}

LS_REGISTER(softmax_forward, DeviceType::kCpu, SoftmaxForwardCpu);
LS_REGISTER(softmax_backward, DeviceType::kCpu, SoftmaxBackwardCpu);

}  // namespace
}  // namespace lockstep::cpu
