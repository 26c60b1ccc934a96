#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/math.cuh"
#include "kernels/gelu/gelu.h"

namespace lockstep::cuda {
namespace {

template <GeluForm form>
struct GeluForward {
  __device__ float operator()(float x) const {
    return form == GeluForm::kExact ? GeluExact(x) : Gelu(x);
  }
};

template <GeluForm form>
struct GeluGradient {
  __device__ float operator()(float x, float dy) const {
    return dy * (form == GeluForm::kExact ? GeluExactDerivative(x) : GeluDerivative(x));
  }
};

template <template <GeluForm> class Function, class F>
void DispatchForm(GeluForm form, const F& f) {
  if (form == GeluForm::kExact) return f(Function<GeluForm::kExact>());
  f(Function<GeluForm::kTanh>());
}

void GeluForwardCuda(Stream stream, GeluForm form, const Tensor& x, const Tensor& y) {
  DispatchFloat("gelu", x.dtype(), [&]<class T>(TypeTag<T>) {
    DispatchForm<GeluForward>(form, [&](auto function) {
      const T* in = Data<T>(x);
      Elementwise({"gelu_forward", x}, stream, x.numel(), false, function, Data<T>(y), in);
    });
  });
}

void GeluBackwardCuda(Stream stream, GeluForm form, const Tensor& x, const Tensor& dy,
                      const Tensor& dx, bool accumulate) {
  DispatchFloat("gelu", x.dtype(), [&]<class T>(TypeTag<T>) {
    DispatchForm<GeluGradient>(form, [&](auto function) {
      const T *in = Data<T>(x), *grad = Data<T>(dy);
      Elementwise({"gelu_backward", x}, stream, x.numel(), accumulate, function, Data<T>(dx), in,
                  grad);
    });
  });
}

LS_REGISTER(gelu_forward, DeviceType::kCuda, GeluForwardCuda);
LS_REGISTER(gelu_backward, DeviceType::kCuda, GeluBackwardCuda);

}  // namespace
}  // namespace lockstep::cuda
