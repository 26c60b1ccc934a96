// Clipping by the global norm.
#pragma once

#include <memory>
#include <span>

#include "core/parameter.h"
#include "core/step_state.h"

namespace lockstep::optim {

// Measures the L2 norm of all gradients together and writes grad_norm, clip_factor and found_inf
// into the state (kernels/global_norm/global_norm.h; a norm above StepState::SetNormLimit counts as
// found); the optimizer's Step applies the factor, and the gradients stay as they are. max_norm = 0
// only measures. Call it after the last backward of the step and before Step. If the parameters are
// sharded, it is collective, and the norm on every rank is that of the whole gradients. Throws
// ArgumentError if max_norm is negative or NaN, if no parameter has a gradient, or unless the state
// is in a step of an optimizer whose gradients are all among these.
void ClipGradNorm(std::span<const std::shared_ptr<Parameter>> parameters, double max_norm,
                  const StepState& state);

}  // namespace lockstep::optim
