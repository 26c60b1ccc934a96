#include "kernels/cuda/elementwise.cuh"
#include "kernels/unary/unary_functions.h"

namespace lockstep::cuda {
namespace {

struct Math {
  LS_HOST_DEVICE static float Exp(float x) { return expf(x); }
  LS_HOST_DEVICE static float Expm1(float x) { return expm1f(x); }
  LS_HOST_DEVICE static float Log(float x) { return logf(x); }
  LS_HOST_DEVICE static float Log1p(float x) { return log1pf(x); }
  LS_HOST_DEVICE static float Rsqrt(float x) { return rsqrtf(x); }
  LS_HOST_DEVICE static float Sin(float x) { return sinf(x); }
  LS_HOST_DEVICE static float Cos(float x) { return cosf(x); }
  LS_HOST_DEVICE static float Tanh(float x) { return tanhf(x); }
  LS_HOST_DEVICE static float Erf(float x) { return erff(x); }
  LS_HOST_DEVICE static float Pow(float x, float exponent) { return powf(x, exponent); }
};

using Functions = UnaryFunctions<float, Math>;

template <class Function>
struct Forward {
  Function function;
  __device__ float operator()(float x) const { return function.Forward(x); }
};

template <class Function>
struct Gradient {
  Function function;
  __device__ float operator()(float saved, float dy) const {
    return dy * function.Derivative(saved);
  }
};

void UnaryForwardCuda(Stream stream, UnaryOp op, double a, double b, const Tensor& x,
                      const Tensor& y) {
  DispatchFloat("unary", x.dtype(), [&]<class T>(TypeTag<T>) {
    DispatchUnary<Functions, false>(op, a, b, [&](auto function) {
      const T* in = Data<T>(x);
      Elementwise({"unary_forward", x}, stream, x.numel(), std::false_type(),
                  Forward<decltype(function)>{function}, Data<T>(y), in);
    });
  });
}

void UnaryBackwardCuda(Stream stream, UnaryOp op, double a, double b, const Tensor& saved,
                       const Tensor& dy, const Tensor& dx, bool accumulate) {
  DispatchFloat("unary", saved.dtype(), [&]<class T>(TypeTag<T>) {
    DispatchUnary<Functions, true>(op, a, b, [&](auto function) {
      const T *in = Data<T>(saved), *grad = Data<T>(dy);
      Elementwise({"unary_backward", saved}, stream, saved.numel(), accumulate,
                  Gradient<decltype(function)>{function}, Data<T>(dx), in, grad);
    });
  });
}

LS_REGISTER(unary_forward, DeviceType::kCuda, UnaryForwardCuda);
LS_REGISTER(unary_backward, DeviceType::kCuda, UnaryBackwardCuda);

}  // namespace
}  // namespace lockstep::cuda
