// Lion: Chen et al., "Symbolic discovery of optimization algorithms" (2023), algorithm 2.
#pragma once

#include <span>

#include "core/dispatcher.h"
#include "kernels/update.h"

namespace lockstep {

inline constexpr const char* kLionStates[] = {"exp_avg"};

struct LionHyper {
  double beta1 = 0.9, beta2 = 0.99;
};

namespace ops {

// Lion's update, with g = grad * clip_factor / loss_scale:
//   p = p (1 - lr weight_decay) - lr sign(beta1 m + (1 - beta1) g);   m = beta2 m + (1 - beta2) g
// and sign(0) = 0. See kernels/update.h. Every element is computed by exactly rounded operations
// only (kernels/lion/lion_math.h), so the bits depend on neither threads, alignment nor device.
void LionUpdate(std::span<const UpdateTensors> tensors, const LionHyper& hyper,
                const StepState& state);

}  // namespace ops

inline constinit Slot<void(std::span<const UpdateTensors> tensors, const LionHyper& hyper,
                           const StepValues* values)>
    lion_update{"lion_update"};

}  // namespace lockstep
