#include "kernels/lion/lion.h"

#include "kernels/sgd/update.h"

namespace lockstep::ops {

void LionUpdate(std::span<const LionTensors> tensors, const LionHyper& hyper,
                const StepState& state) {
  for (const double beta : {hyper.beta1, hyper.beta2}) {
    LS_CHECK(beta >= 0 && beta < 1, "lion: betas must be in [0, 1), got ", beta);
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    const LionTensors& t = tensors[i];
    internal::CheckValue("lion", i, t.value, t.grad, t.master, state);
    internal::CheckLikeValue("lion", i, "exp_avg", t.exp_avg, t.value, StateDType(t.value));
  }
  for (const LionTensors& t : tensors) {
    for (const Tensor* written : {&t.value, &t.exp_avg, &t.master}) {
      if (written->defined()) written->storage().BumpVersion();
    }
  }
  lion_update(CurrentStream(state.device()), tensors, hyper, state.device_values());
}

}  // namespace lockstep::ops
