#include "optim/lion.h"

#include "kernels/lion/lion.h"

namespace lockstep::optim {

Lion::Lion(std::vector<ParameterGroup> groups, const LionOptions& options)
    : Optimizer(std::move(groups),
                {.name = "Lion",
                 .rules = {{.states = {std::begin(kLionStates), std::end(kLionStates)},
                            .update =
                                [](std::span<const UpdateTensors> tensors, const Betas& betas,
                                   const StepState& state) {
                                  ops::LionUpdate(tensors, {betas.first, betas.second}, state);
                                }}},
                 .weight_decay = options.weight_decay,
                 .master_weights = options.master_weights,
                 .state_dtype = options.state_dtype,
                 .betas = Betas{options.beta1, options.beta2},
                 .offload = options.offload,
                 .ema = options.ema}) {}

}  // namespace lockstep::optim
