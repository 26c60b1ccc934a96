#include "kernels/cuda/elementwise.cuh"
#include "kernels/linear_cross_entropy/linear_cross_entropy.h"

namespace lockstep::cuda {
namespace {

struct MultiplyByBoth {
  const float* upstream;
  const float* scale;
  __device__ float operator()(float x) const { return x * (*upstream * *scale); }
};

void BackwardCuda(Stream stream, const LinearCrossEntropyBackwardArgs& args) {
  DispatchFloat("linear_cross_entropy", args.grad.dtype(), [&]<class T>(TypeTag<T>) {
    const T* grad = Data<T>(args.grad);
    DispatchFloat("linear_cross_entropy", args.y.dtype(), [&]<class Y>(TypeTag<Y>) {
      Elementwise({"linear_cross_entropy_backward", args.grad}, stream, args.y.numel(),
                  args.accumulate,
                  MultiplyByBoth{Data<float>(args.upstream), Data<float>(args.scale)},
                  Data<Y>(args.y), grad);
    });
  });
}

LS_REGISTER(linear_cross_entropy_backward, DeviceType::kCuda, BackwardCuda);

}  // namespace
}  // namespace lockstep::cuda
