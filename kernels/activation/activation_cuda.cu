#include "kernels/activation/activation.h"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/math.cuh"

namespace lockstep::cuda {
namespace {

// NaN is neither above nor below 0, and passes through.
struct ReluFunction {
  __device__ static float Forward(float x) { return x <= 0.0f ? 0.0f : x; }
  __device__ static float Derivative(float x) { return x <= 0.0f ? 0.0f : 1.0f; }
};

struct TanhFunction {
  __device__ static float Forward(float x) { return tanhf(x); }
  __device__ static float Derivative(float x) {
    const float y = tanhf(x);
    return 1.0f - y * y;
  }
};

struct SigmoidFunction {
  __device__ static float Forward(float x) { return Sigmoid(x); }
  __device__ static float Derivative(float x) {
    const float y = Sigmoid(x);
    return y * (1.0f - y);
  }
};

struct SiluFunction {
  __device__ static float Forward(float x) { return Silu(x); }
  __device__ static float Derivative(float x) { return SiluDerivative(x); }
};

template <class Function>
struct Forward {
  __device__ float operator()(float x) const { return Function::Forward(x); }
};

template <class Function>
struct Gradient {
  __device__ float operator()(float saved, float dy) const {
    return dy * Function::Derivative(saved);
  }
};

template <template <class> class Wrapper, class F>
void DispatchActivation(Nonlinearity kind, const F& f) {
  switch (kind) {
    case Nonlinearity::kRelu:
      return f(Wrapper<ReluFunction>());
    case Nonlinearity::kTanh:
      return f(Wrapper<TanhFunction>());
    case Nonlinearity::kSigmoid:
      return f(Wrapper<SigmoidFunction>());
    case Nonlinearity::kSilu:
      return f(Wrapper<SiluFunction>());
  }
}

void ActivationForwardCuda(Stream stream, Nonlinearity kind, const Tensor& x, const Tensor& y) {
  DispatchFloat("activation", x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    DispatchActivation<Forward>(kind, [&](auto function) {
      const T* in = Data<T>(x);
      Elementwise({"activation_forward", x}, stream, x.numel(), false, function, Data<T>(y), in);
    });
  });
}

void ActivationBackwardCuda(Stream stream, Nonlinearity kind, const Tensor& saved, const Tensor& dy,
                            const Tensor& dx, bool accumulate) {
  DispatchFloat("activation", saved.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    DispatchActivation<Gradient>(kind, [&](auto function) {
      const T *in = Data<T>(saved), *grad = Data<T>(dy);
      Elementwise({"activation_backward", saved}, stream, saved.numel(), accumulate, function,
                  Data<T>(dx), in, grad);
    });
  });
}

LS_REGISTER(activation_forward, DeviceType::kCuda, ActivationForwardCuda);
LS_REGISTER(activation_backward, DeviceType::kCuda, ActivationBackwardCuda);

}  // namespace
}  // namespace lockstep::cuda
