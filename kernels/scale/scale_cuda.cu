#include "kernels/cuda/elementwise.cuh"
#include "kernels/scale/scale.h"

namespace lockstep::cuda {
namespace {

struct Multiply {
  float alpha;
  __device__ float operator()(float x) const { return alpha * x; }
};

void ScaleCuda(Stream stream, const Tensor& x, double alpha, const Tensor& y, bool accumulate) {
  DispatchFloat("scale", x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* in = Data<T>(x);
    Elementwise({"scale", x}, stream, x.numel(), accumulate, Multiply{static_cast<float>(alpha)},
                Data<T>(y), in);
  });
}

LS_REGISTER(scale_slot, DeviceType::kCuda, ScaleCuda);

}  // namespace
}  // namespace lockstep::cuda
