#include "kernels/activation/activation.h"
#include "kernels/cpu.h"
#include "kernels/cpu_math.h"
#include "kernels/cpu_simd.h"

namespace lockstep::cpu {
namespace {

struct ReluFunction {
  template <class A>
  static A Forward(A x) {
    return x <= A(0) ? A(0) : x;
  }
  template <class A>
  static A Derivative(A x) {
    return x <= A(0) ? A(0) : A(1);
  }
};

struct TanhFunction {
  template <class A>
  static A Forward(A x) {
    return Tanh(x);
  }
  template <class A>
  static A Derivative(A x) {
    const A y = Tanh(x);
    return A(1) - y * y;
  }
};

struct SigmoidFunction {
  template <class A>
  static A Forward(A x) {
    return A(1) / (A(1) + Exp(-x));
  }
  template <class A>
  static A Derivative(A x) {
    const A y = Forward(x);
    return y * (A(1) - y);
  }
};

struct SiluFunction {
  template <class A>
  static A Forward(A x) {
    return Silu(x);
  }
  template <class A>
  static A Derivative(A x) {
    return SiluDerivative(x);
  }
};

template <class F>
void DispatchActivation(Nonlinearity kind, F&& f) {
  switch (kind) {
    case Nonlinearity::kRelu:
      return f(ReluFunction());
    case Nonlinearity::kTanh:
      return f(TanhFunction());
    case Nonlinearity::kSigmoid:
      return f(SigmoidFunction());
    case Nonlinearity::kSilu:
      return f(SiluFunction());
  }
}

void ActivationForwardCpu(Stream, Nonlinearity kind, const Tensor& x, const Tensor& y) {
  DispatchFloat("activation", x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    DispatchActivation(kind, [&](auto function) {
      const T* in = x.data<T>();
      T* out = y.data<T>();
      VectorisedParallelFor(x.numel(), kElementwiseGrain, [=](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          out[i] = Convert<T>(function.Forward(Convert<Acc<T>>(in[i])));
        }
      });
    });
  });
}

void ActivationBackwardCpu(Stream, Nonlinearity kind, const Tensor& saved, const Tensor& dy,
                           const Tensor& dx, bool accumulate) {
  DispatchFloat("activation", saved.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Acc<T>;
    DispatchActivation(kind, [&](auto function) {
      const T* in = saved.data<T>();
      const T* grad = dy.data<T>();
      T* out = dx.data<T>();
      VectorisedParallelFor(saved.numel(), kElementwiseGrain, [=](int64_t begin, int64_t end) {
        const auto gradient = [=](int64_t i) {
          return Convert<A>(grad[i]) * function.Derivative(Convert<A>(in[i]));
        };
        // Two loops: with both cases in one, compilers do not vectorise it.
        if (accumulate) {
          for (int64_t i = begin; i < end; ++i) {
            out[i] = Convert<T>(Convert<A>(out[i]) + gradient(i));
          }
        } else {
          for (int64_t i = begin; i < end; ++i) out[i] = Convert<T>(gradient(i));
        }
      });
    });
  });
}

LS_REGISTER(activation_forward, DeviceType::kCpu, ActivationForwardCpu);
LS_REGISTER(activation_backward, DeviceType::kCpu, ActivationBackwardCpu);

}  // namespace
}  // namespace lockstep::cpu
