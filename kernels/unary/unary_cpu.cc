#include "kernels/cpu/elementwise_loops.h"
#include "kernels/cpu/math.h"
#include "kernels/unary/unary_functions.h"

namespace lockstep::cpu {
namespace {

template <class A>
struct Math {
  static A Exp(A x) { return cpu::Exp(x); }
  static A Expm1(A x) { return cpu::Expm1(x); }
  static A Log(A x) { return cpu::Log(x); }
  static A Log1p(A x) { return cpu::Log1p(x); }
  static A Rsqrt(A x) { return A(1) / std::sqrt(x); }
  static A Sin(A x) { return cpu::Sin(x); }
  static A Cos(A x) { return cpu::Cos(x); }
  static A Tanh(A x) { return cpu::Tanh(x); }
  static A Erf(A x) { return cpu::Erf(x); }
  static A Pow(A x, A exponent) { return cpu::Pow(x, exponent); }
};

template <class A>
using Functions = UnaryFunctions<A, Math<A>>;

void UnaryForwardCpu(Stream, UnaryOp op, double a, double b, const Tensor& x, const Tensor& y) {
  DispatchFloat("unary", x.dtype(), [&]<class T>(TypeTag<T>) {
    DispatchUnary<Functions<Acc<T>>, false>(
        op, a, b, [&](auto function) { ElementwiseForward<T>(function, x, y); });
  });
}

void UnaryBackwardCpu(Stream, UnaryOp op, double a, double b, const Tensor& saved, const Tensor& dy,
                      const Tensor& dx, bool accumulate) {
  DispatchFloat("unary", saved.dtype(), [&]<class T>(TypeTag<T>) {
    DispatchUnary<Functions<Acc<T>>, true>(op, a, b, [&](auto function) {
      ElementwiseBackward<T>(function, saved, dy, dx, accumulate);
    });
  });
}

LS_REGISTER(unary_forward, DeviceType::kCpu, UnaryForwardCpu);
LS_REGISTER(unary_backward, DeviceType::kCpu, UnaryBackwardCpu);

}  // namespace
}  // namespace lockstep::cpu
