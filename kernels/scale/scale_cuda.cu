#include "kernels/cuda/elementwise.cuh"
#include "kernels/scale/scale.h"

namespace lockstep::cuda {
namespace {

struct Multiply {
  float alpha;
  __device__ float operator()(float x) const { return alpha * x; }
};

struct DivideBy {
  float divisor;
  __device__ float operator()(float x) const { return x / divisor; }
};

void ScaleCuda(Stream stream, const Tensor& x, ScaleBy by, double alpha, const Tensor& y,
               bool accumulate) {
  DispatchFloat("scale", x.dtype(), [&]<class T>(TypeTag<T>) {
    const T* in = Data<T>(x);
    const auto a = static_cast<float>(alpha);
    const auto run = [&](const auto& f) {
      Elementwise({"scale", x}, stream, x.numel(), accumulate, f, Data<T>(y), in);
    };
    if (by == ScaleBy::kFactor) {
      run(Multiply{a});
    } else {
      run(DivideBy{a});
    }
  });
}

LS_REGISTER(scale_slot, DeviceType::kCuda, ScaleCuda);

}  // namespace
}  // namespace lockstep::cuda
