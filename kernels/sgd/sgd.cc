#include "kernels/sgd/sgd.h"

#include "kernels/sgd/update.h"

namespace lockstep::ops {

void SgdUpdate(std::span<const SgdTensors> tensors, const SgdHyper& hyper, const StepState& state) {
  LS_CHECK(hyper.momentum >= 0 && hyper.momentum < 1, "sgd: momentum must be in [0, 1), got ",
           hyper.momentum);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const SgdTensors& t = tensors[i];
    internal::CheckValue("sgd", i, t.value, t.grad, t.master, state);
    if (hyper.momentum > 0) {
      internal::CheckLikeValue("sgd", i, "momentum", t.momentum, t.value, StateDType(t.value));
    }
  }
  for (const SgdTensors& t : tensors) {
    for (const Tensor* written : {&t.value, &t.momentum, &t.master}) {
      if (written->defined()) written->storage().BumpVersion();
    }
  }
  sgd_update(CurrentStream(state.device()), tensors, hyper, state.device_values());
}

}  // namespace lockstep::ops
