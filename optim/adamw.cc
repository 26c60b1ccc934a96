#include "optim/adamw.h"

#include "kernels/adamw/adamw.h"

namespace lockstep::optim {

AdamW::AdamW(std::vector<ParameterGroup> groups, const AdamWOptions& options)
    : Optimizer(std::move(groups), {.name = "AdamW",
                                    .rules = {Rule(options.eps)},
                                    .weight_decay = options.weight_decay,
                                    .master_weights = options.master_weights,
                                    .state_dtype = options.state_dtype,
                                    .betas = Betas{options.beta1, options.beta2},
                                    .offload = options.offload}) {}

UpdateRule AdamW::Rule(double eps) {
  CheckNotNegative("AdamW", "eps", eps);
  const auto update = [eps](std::span<const UpdateTensors> tensors, const Betas& betas,
                            const StepState& state) {
    ops::AdamWUpdate(tensors, {betas.first, betas.second, eps}, state);
  };
  return {{std::begin(kAdamWStates), std::end(kAdamWStates)}, update};
}

}  // namespace lockstep::optim
