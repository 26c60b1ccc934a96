#include "core/cuda/launch.h"
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/types.cuh"
#include "kernels/loss_scale/loss_scale.h"

namespace lockstep::cuda {
namespace {

// Grid: threads to elements. No shared memory.
__global__ void ScaleRootKernel(const float* root, int64_t n, const StepValues* values,
                                float* scaled) {
  const int64_t i = GlobalThread();
  if (i < n) scaled[i] = root[i] * values->loss_scale.scale;
}

// Grid: one thread.
__global__ void UpdateLossScaleKernel(LossScaleOptions options, StepValues* values) {
  values->loss_scale = NextLossScale(values->loss_scale, values->found_inf == kNotFinite, options);
}

void ScaleRootCuda(Stream stream, const Tensor& root, const StepValues* values,
                   const Tensor& scaled) {
  LaunchThreads({"scale_root", root}, ScaleRootKernel, root.numel(), stream, Data<float>(root),
                root.numel(), values, Data<float>(scaled));
}

void UpdateLossScaleCuda(Stream stream, const LossScaleOptions& options, StepValues* values) {
  Launch("update_loss_scale", UpdateLossScaleKernel, 1, 1, 0, stream, options, values);
}

LS_REGISTER(scale_root, DeviceType::kCuda, ScaleRootCuda);
LS_REGISTER(update_loss_scale, DeviceType::kCuda, UpdateLossScaleCuda);

}  // namespace
}  // namespace lockstep::cuda
