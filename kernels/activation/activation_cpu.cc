#include "kernels/activation/activation.h"
#include "kernels/cpu/math.h"
#include "kernels/gelu/elementwise_cpu.h"

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
    DispatchActivation(kind, [&](auto function) { ElementwiseForward<T>(function, x, y); });
  });
}

void ActivationBackwardCpu(Stream, Nonlinearity kind, const Tensor& saved, const Tensor& dy,
                           const Tensor& dx, bool accumulate) {
  DispatchFloat("activation", saved.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    DispatchActivation(
        kind, [&](auto function) { ElementwiseBackward<T>(function, saved, dy, dx, accumulate); });
  });
}

LS_REGISTER(activation_forward, DeviceType::kCpu, ActivationForwardCpu);
LS_REGISTER(activation_backward, DeviceType::kCpu, ActivationBackwardCpu);

}  // namespace
}  // namespace lockstep::cpu
