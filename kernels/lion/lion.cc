#include "kernels/lion/lion.h"

namespace lockstep::ops {

void LionUpdate(std::span<const UpdateTensors> tensors, const LionHyper& hyper,
                const StepState& state) {
  for (const double beta : {hyper.beta1, hyper.beta2}) {
    LS_CHECK(beta >= 0 && beta < 1, "lion: betas must be in [0, 1), got ", beta);
  }
  internal::PrepareUpdate("lion", tensors, kLionStates, state);
  lion_update(CurrentStream(state.device()), tensors, hyper, state.device_values());
}

}  // namespace lockstep::ops
