#include "kernels/cuda/elementwise.cuh"
#include "own/softsign.h"

namespace own {
namespace {

using namespace lockstep;
using namespace lockstep::cuda;

struct Forward {
  __device__ float operator()(float x) const { return x / (1 + fabsf(x)); }
};

struct Gradient {
  __device__ float operator()(float x, float dy) const {
    const float d = 1 + fabsf(x);
    return dy / (d * d);
  }
};

void SoftsignForwardCuda(Stream stream, const Tensor& x, const Tensor& y) {
  DispatchFloat("softsign", x.dtype(), [&]<class T>(TypeTag<T>) {
    const T* in = Data<T>(x);
    Elementwise({"softsign_forward", x}, stream, x.numel(), std::false_type(), Forward(),
                Data<T>(y), in);
  });
}

void SoftsignBackwardCuda(Stream stream, const Tensor& x, const Tensor& dy, const Tensor& dx,
                          bool accumulate) {
  DispatchFloat("softsign", x.dtype(), [&]<class T>(TypeTag<T>) {
    const T *in = Data<T>(x), *grad = Data<T>(dy);
    Elementwise({"softsign_backward", x}, stream, x.numel(), accumulate, Gradient(), Data<T>(dx),
                in, grad);
  });
}

LS_REGISTER(softsign_forward, DeviceType::kCuda, SoftsignForwardCuda);
LS_REGISTER(softsign_backward, DeviceType::kCuda, SoftsignBackwardCuda);

}  // namespace
}  // namespace own
