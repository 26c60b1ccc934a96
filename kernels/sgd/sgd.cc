#include "kernels/sgd/sgd.h"

namespace lockstep::ops {

void SgdUpdate(std::span<const UpdateTensors> tensors, const SgdHyper& hyper,
               const StepState& state) {
  LS_CHECK(hyper.momentum >= 0 && hyper.momentum < 1, "sgd: momentum must be in [0, 1), got ",
           hyper.momentum);
  const std::span<const char* const> states = kSgdStates;
  internal::PrepareUpdate("sgd", tensors, hyper.momentum > 0 ? states : states.first(0), state);
  sgd_update(CurrentStream(state.device()), tensors, hyper, state.device_values());
}

}  // namespace lockstep::ops
