// Dynamic loss scaling: Micikevicius et al., "Mixed precision training" (ICLR 2018), as PyTorch's
// GradScaler does it.
#pragma once

#include "core/dispatcher.h"
#include "core/philox.h"  // LS_HOST_DEVICE
#include "core/step_state.h"
#include "core/tensor.h"

namespace lockstep {

namespace ops {

// root times the state's loss scale, read on the device when the work runs, where loss scaling is
// enabled; else root itself. root: f32 or f64, any shape, on the state's device. The result is for
// one Backward.
Tensor ScaleRoot(const Tensor& root, const StepState& state);

// Adapts the loss scale to whether this step's gradients were finite, by found_inf. Once per step,
// after the update. Does nothing where loss scaling is not enabled.
void UpdateLossScale(const StepState& state);

}  // namespace ops

// The arithmetic, shared by all devices. A scale that would become infinite stays.
LS_HOST_DEVICE inline LossScale NextLossScale(const LossScale& now, bool found_inf,
                                              const LossScaleOptions& options) {
  LossScale next = now;
  if (found_inf) {
    next.scale = static_cast<float>(now.scale * options.backoff);
    next.good_steps = 0;
    ++next.skipped;
  } else if (++next.good_steps >= options.growth_interval) {
    const double grown = now.scale * options.growth;
    if (grown < 0x1p127) next.scale = static_cast<float>(grown);
    next.good_steps = 0;
  }
  return next;
}

inline constinit Slot<void(const Tensor& root, const StepValues* values, const Tensor& scaled)>
    scale_root{"scale_root"};
inline constinit Slot<void(const LossScaleOptions& options, StepValues* values)> update_loss_scale{
    "update_loss_scale"};

}  // namespace lockstep
