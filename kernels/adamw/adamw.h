// AdamW: Loshchilov and Hutter, "Decoupled weight decay regularization" (ICLR 2019).
#pragma once

#include <span>

#include "core/dispatcher.h"
#include "core/step_state.h"
#include "core/tensor.h"

namespace lockstep {

// One parameter's part of an update. All of one shape, contiguous, on the state's device.
struct AdamWTensors {
  Tensor value;       // f64, f32 or bf16; written
  Tensor grad;        // floating
  Tensor exp_avg;     // f64 for an f64 value, else f32; written
  Tensor exp_avg_sq;  // likewise
  Tensor master;      // undefined, or the f32 original of a 16-bit value; written
  double weight_decay = 0;
};

struct AdamWHyper {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
};

namespace ops {

// torch.optim.AdamW's update of all parameters at once, with g = grad * clip_factor / loss_scale:
//   m = m + (1 - beta1) (g - m)            v = beta2 v + (1 - beta2) g^2
//   p = p (1 - lr weight_decay) - (lr / beta1_correction) m / (sqrt(v / beta2_correction) + eps)
// lr, corrections and factors are read from the state on its device. Where found_inf is set nothing
// changes, not a bit. Every element is computed by exactly rounded operations alone (kernels/adamw/
// adamw_math.h), so the bits depend on neither threads, alignment nor device. Throws ArgumentError.
void AdamWUpdate(std::span<const AdamWTensors> tensors, const AdamWHyper& hyper,
                 const StepState& state);

}  // namespace ops

inline constinit Slot<void(std::span<const AdamWTensors> tensors, const AdamWHyper& hyper,
                           const StepValues* values)>
    adamw_update{"adamw_update"};

}  // namespace lockstep
