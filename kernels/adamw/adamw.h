// AdamW: Loshchilov and Hutter, "Decoupled weight decay regularization" (ICLR 2019).
#pragma once

#include <span>

#include "core/dispatcher.h"
#include "kernels/update.h"

namespace lockstep {

inline constexpr const char* kAdamWStates[] = {"exp_avg", "exp_avg_sq"};

struct AdamWHyper {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  int correction = 0;  // StepState::CorrectionIndex of the betas; AdamWUpdate sets it
  DecoupledDecay decay{};
};

namespace ops {

// torch.optim.AdamW's update, with g = grad * clip_factor / loss_scale:
//   m = m + (1 - beta1) (g - m)            v = beta2 v + (1 - beta2) g^2
//   p = p (1 - lr weight_decay) - (lr / beta1_correction) m / (sqrt(v / beta2_correction) + eps)
// with what the hyper's `decay` leaves of the weight decay. See kernels/update.h. Every element is
// computed by exactly rounded operations only (kernels/adamw/adamw_math.h), so the bits depend on
// neither threads, alignment nor device. Throws ArgumentError, also if the state's step was begun
// without these betas.
void AdamWUpdate(std::span<const UpdateTensors> tensors, const AdamWHyper& hyper,
                 const StepState& state);

}  // namespace ops

inline constinit Slot<void(std::span<const UpdateTensors> tensors, const AdamWHyper& hyper,
                           const StepValues* values)>
    adamw_update{"adamw_update"};

}  // namespace lockstep
