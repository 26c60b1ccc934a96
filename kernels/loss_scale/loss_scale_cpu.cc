#include "kernels/cpu/elementwise.h"
#include "kernels/loss_scale/loss_scale.h"

namespace lockstep::cpu {
namespace {

void ScaleRootCpu(Stream, const Tensor& root, const StepValues* values, const Tensor& scaled) {
  DispatchFloat("scale_root", root.dtype(), [&]<class T>(TypeTag<T>) {
    const T* from = root.data<T>();
    T* to = scaled.data<T>();
    for (int64_t i = 0; i < root.numel(); ++i) {
      to[i] = Convert<T>(Convert<Acc<T>>(from[i]) * values->loss_scale.scale);
    }
  });
}

void UpdateLossScaleCpu(Stream, const LossScaleOptions& options, StepValues* values) {
  values->loss_scale = NextLossScale(values->loss_scale, values->found_inf == kNotFinite, options);
}

LS_REGISTER(scale_root, DeviceType::kCpu, ScaleRootCpu);
LS_REGISTER(update_loss_scale, DeviceType::kCpu, UpdateLossScaleCpu);

}  // namespace
}  // namespace lockstep::cpu
