#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/types.cuh"
#include "kernels/one_hot/one_hot.h"

namespace lockstep::cuda {
namespace {

// One thread per index, which writes at most one element. No shared memory.
template <class I>
__global__ void OneHotKernel(int64_t n, int64_t classes, const I* index, uint8_t* y) {
  const int64_t i = GlobalThread();
  if (i >= n) return;
  const int64_t at = index[i];
  if (at >= 0 && at < classes) y[i * classes + at] = 1;
}

void OneHotCuda(Stream stream, const Tensor& index, const Tensor& y) {
  DispatchIndex("one_hot", index.dtype(), [&]<class I>(TypeTag<I>) {
    const int64_t n = index.numel();
    LaunchThreads({"one_hot", index}, OneHotKernel<I>, n, stream, n, y.dim(1), Data<I>(index),
                  Data<uint8_t>(y));
  });
}

LS_REGISTER(one_hot_slot, DeviceType::kCuda, OneHotCuda);

}  // namespace
}  // namespace lockstep::cuda
