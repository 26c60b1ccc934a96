#include "kernels/adamw/adamw.h"

namespace lockstep::ops {

void AdamWUpdate(std::span<const UpdateTensors> tensors, const AdamWHyper& hyper,
                 const StepState& state) {
  for (const double beta : {hyper.beta1, hyper.beta2}) {
    LS_CHECK(beta >= 0 && beta < 1, "adamw: betas must be in [0, 1), got ", beta);
  }
  LS_CHECK(hyper.eps >= 0, "adamw: eps must not be negative, got ", hyper.eps);
  AdamWHyper complete = hyper;
  complete.correction = state.CorrectionIndex({hyper.beta1, hyper.beta2});
  internal::PrepareUpdate("adamw", tensors, kAdamWStates, state);
  adamw_update(CurrentStream(state.device()), tensors, complete, state.device_values());
}

}  // namespace lockstep::ops
