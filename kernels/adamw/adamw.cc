#include "kernels/adamw/adamw.h"

#include "kernels/sgd/update.h"

namespace lockstep::ops {

void AdamWUpdate(std::span<const AdamWTensors> tensors, const AdamWHyper& hyper,
                 const StepState& state) {
  for (const double beta : {hyper.beta1, hyper.beta2}) {
    LS_CHECK(beta >= 0 && beta < 1, "adamw: betas must be in [0, 1), got ", beta);
  }
  LS_CHECK(hyper.eps >= 0, "adamw: eps must not be negative, got ", hyper.eps);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const AdamWTensors& t = tensors[i];
    const DType state_dtype = StateDType(t.value);
    internal::CheckValue("adamw", i, t.value, t.grad, t.master, state);
    internal::CheckLikeValue("adamw", i, "exp_avg", t.exp_avg, t.value, state_dtype);
    internal::CheckLikeValue("adamw", i, "exp_avg_sq", t.exp_avg_sq, t.value, state_dtype);
  }
  for (const AdamWTensors& t : tensors) {
    for (const Tensor* written : {&t.value, &t.exp_avg, &t.exp_avg_sq, &t.master}) {
      if (written->defined()) written->storage().BumpVersion();
    }
  }
  adamw_update(CurrentStream(state.device()), tensors, hyper, state.device_values());
}

}  // namespace lockstep::ops
