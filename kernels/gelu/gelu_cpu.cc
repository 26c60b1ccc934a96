#include "kernels/cpu/elementwise_loops.h"
#include "kernels/cpu/math.h"
#include "kernels/gelu/gelu.h"

namespace lockstep::cpu {
namespace {

template <GeluForm form>
struct GeluFunction {
  template <class A>
  static A Forward(A x) {
    return form == GeluForm::kExact ? GeluExact(x) : Gelu(x);
  }
  template <class A>
  static A Derivative(A x) {
    return form == GeluForm::kExact ? GeluExactDerivative(x) : GeluDerivative(x);
  }
};

template <class F>
void DispatchForm(GeluForm form, const F& f) {
  if (form == GeluForm::kExact) return f(GeluFunction<GeluForm::kExact>());
  f(GeluFunction<GeluForm::kTanh>());
}

void GeluForwardCpu(Stream, GeluForm form, const Tensor& x, const Tensor& y) {
  DispatchFloat("gelu", x.dtype(), [&]<class T>(TypeTag<T>) {
    DispatchForm(form, [&](auto function) { ElementwiseForward<T>(function, x, y); });
  });
}

void GeluBackwardCpu(Stream, GeluForm form, const Tensor& x, const Tensor& dy, const Tensor& dx,
                     bool accumulate) {
  DispatchFloat("gelu", x.dtype(), [&]<class T>(TypeTag<T>) {
    DispatchForm(form,
                 [&](auto function) { ElementwiseBackward<T>(function, x, dy, dx, accumulate); });
  });
}

LS_REGISTER(gelu_forward, DeviceType::kCpu, GeluForwardCpu);
LS_REGISTER(gelu_backward, DeviceType::kCpu, GeluBackwardCpu);

}  // namespace
}  // namespace lockstep::cpu
