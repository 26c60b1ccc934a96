// Lion: Chen et al., "Symbolic discovery of optimization algorithms" (2023), algorithm 2.
#pragma once

#include <span>

#include "core/dispatcher.h"
#include "core/step_state.h"
#include "core/tensor.h"

namespace lockstep {

// One parameter's part of an update. All of one shape, contiguous, on the state's device.
struct LionTensors {
  Tensor value;    // f64, f32 or bf16; written
  Tensor grad;     // floating
  Tensor exp_avg;  // f64 for an f64 value, else f32; written
  Tensor master;   // undefined, or the f32 original of a 16-bit value; written
  double weight_decay = 0;
};

struct LionHyper {
  double beta1 = 0.9, beta2 = 0.99;
};

namespace ops {

// The update of all parameters at once, with g = grad * clip_factor / loss_scale:
//   p = p (1 - lr weight_decay) - lr sign(beta1 m + (1 - beta1) g);   m = beta2 m + (1 - beta2) g
// and sign(0) = 0. lr and the factors are read from the state on its device. Where found_inf is set
// nothing changes, not a bit. Every element is computed by exactly rounded operations alone
// (kernels/ lion/lion_math.h), so the bits depend on neither threads, alignment nor device. Throws
// ArgumentError.
void LionUpdate(std::span<const LionTensors> tensors, const LionHyper& hyper,
                const StepState& state);

}  // namespace ops

inline constinit Slot<void(std::span<const LionTensors> tensors, const LionHyper& hyper,
                           const StepValues* values)>
    lion_update{"lion_update"};

}  // namespace lockstep
