#include "kernels/loss_scale/loss_scale.h"

namespace lockstep::ops {

Tensor ScaleRoot(const Tensor& root, const StepState& state) {
  if (!state.loss_scaling()) return root;
  LS_CHECK(root.defined() && (root.dtype() == DType::kF32 || root.dtype() == DType::kF64) &&
               root.device() == state.device(),
           "scale_root: the root gradient must be f32 or f64 and on ", state.device(),
           " as the StepState is, got ", root.Describe());
  const Tensor x = root.Detach().Contiguous(), scaled = Tensor::EmptyLike(x);
  scale_root(CurrentStream(state.device()), x, state.device_values(), scaled);
  state.SetRootScaled();
  return scaled;
}

void UpdateLossScale(const StepState& state) {
  if (!state.loss_scaling()) return;
  update_loss_scale(CurrentStream(state.device()), *state.loss_scaling(), state.device_values());
}

}  // namespace lockstep::ops
