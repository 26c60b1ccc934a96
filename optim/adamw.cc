#include "optim/adamw.h"

#include "kernels/adamw/adamw.h"

namespace lockstep::optim {

AdamW::AdamW(std::vector<ParameterGroup> groups, const AdamWOptions& options)
    : Optimizer(std::move(groups), {.name = "AdamW",
                                    .rules = {Rule(options.eps, options.decay)},
                                    .weight_decay = options.weight_decay,
                                    .master_weights = options.master_weights,
                                    .state_dtype = options.state_dtype,
                                    .betas = Betas{options.beta1, options.beta2},
                                    .offload = options.offload,
                                    .ema = options.ema}) {}

UpdateRule AdamW::Rule(double eps, const DecoupledDecay& decay) {
  CheckNotNegative("AdamW", "eps", eps);
  CheckNotNegative("AdamW", "decay.steps", static_cast<double>(decay.steps));
  const auto update = [eps, decay](std::span<const UpdateTensors> tensors, const Betas& betas,
                                   const StepState& state) {
    const AdamWHyper hyper{.beta1 = betas.first, .beta2 = betas.second, .eps = eps, .decay = decay};
    ops::AdamWUpdate(tensors, hyper, state);
  };
  return {{std::begin(kAdamWStates), std::end(kAdamWStates)}, update};
}

}  // namespace lockstep::optim
