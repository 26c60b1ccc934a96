#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/math.h"
#include "kernels/loss/loss.h"

namespace lockstep::cpu {
namespace {

// For each kind, the loss and its derivatives by x and by the target; A is float or double.
struct Mse {
  template <class A>
  static A Value(A x, A t) {
    return (x - t) * (x - t);
  }
  template <class A>
  static A ByX(A x, A t) {
    return A(2) * (x - t);
  }
  template <class A>
  static A ByTarget(A x, A t) {
    return A(2) * (t - x);
  }
};

struct L1 {
  template <class A>
  static A Value(A x, A t) {
    return std::fabs(x - t);
  }
  template <class A>
  static A ByX(A x, A t) {
    const A d = x - t;
    return d > A(0) ? A(1) : (d < A(0) ? A(-1) : (d == A(0) ? A(0) : d));  // at last NaN
  }
  template <class A>
  static A ByTarget(A x, A t) {
    return ByX(t, x);
  }
};

struct BceWithLogits {
  template <class A>
  static A Value(A x, A t) {
    // Not 0 times infinity where the target is certain.
    const A wrong = x > A(0) ? (t == A(1) ? A(0) : x * (A(1) - t)) : (t == A(0) ? A(0) : -x * t);
    return wrong + Log1p(Exp(-std::fabs(x)));
  }
  template <class A>
  static A ByX(A x, A t) {
    return A(1) / (A(1) + Exp(-x)) - t;
  }
  template <class A>
  static A ByTarget(A x, A) {
    return -x;
  }
};

template <class F>
void DispatchKind(LossKind kind, const F& f) {
  switch (kind) {
    case LossKind::kMse:
      return f(Mse());
    case LossKind::kL1:
      return f(L1());
    case LossKind::kBceWithLogits:
      return f(BceWithLogits());
  }
}

void LossForwardCpu(Stream, LossKind kind, const Tensor& x, const Tensor& target, const Tensor& y) {
  DispatchFloat("loss", x.dtype(), [&]<class T>(TypeTag<T>) {
    using A = Acc<T>;
    DispatchKind(kind, [&](auto loss) {
      const T *from = x.data<T>(), *to = target.data<T>();
      A* out = y.data<A>();
      ParallelFor(y.numel(), kElementwiseGrain, [=](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          out[i] = loss.Value(Convert<A>(from[i]), Convert<A>(to[i]));
        }
      });
    });
  });
}

void LossBackwardCpu(Stream, LossKind kind, int which, const Tensor& x, const Tensor& target,
                     const Tensor& dy, const Tensor& dx, bool accumulate) {
  DispatchFloat("loss", x.dtype(), [&]<class T>(TypeTag<T>) {
    using A = Acc<T>;
    DispatchKind(kind, [&](auto loss) {
      const T *from = x.data<T>(), *to = target.data<T>();
      const A* grad = dy.data<A>();
      T* out = dx.data<T>();
      const auto run = [=](auto derivative) {
        ParallelFor(dx.numel(), kElementwiseGrain, [=](int64_t begin, int64_t end) {
          WriteOrAdd(accumulate, begin, end, out, [=](int64_t i) {
            return grad[i] * derivative(Convert<A>(from[i]), Convert<A>(to[i]));
          });
        });
      };
      if (which == 0) {
        run([loss](A a, A b) { return loss.ByX(a, b); });
      } else {
        run([loss](A a, A b) { return loss.ByTarget(a, b); });
      }
    });
  });
}

LS_REGISTER(loss_forward, DeviceType::kCpu, LossForwardCpu);
LS_REGISTER(loss_backward, DeviceType::kCpu, LossBackwardCpu);

}  // namespace
}  // namespace lockstep::cpu
