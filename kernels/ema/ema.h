// The exponential moving averages of weights that optimizers keep.
#pragma once

#include <span>

#include "core/dispatcher.h"
#include "kernels/update.h"

namespace lockstep {

struct EmaHyper {
  double decay = 0.999;
};

namespace ops {

// average = d average + (1 - d) w for those of the tensors that have an average, where w is the
// original: the master, or else the value. In the n-th step of a run (n = 1, 2, ...) d is
// min(decay, (1 + n) / (10 + n)), as in diffusers: an average of few weights follows them closely.
// Writes only averages. See kernels/update.h. Every element is computed by exactly rounded
// operations only, so the bits depend on neither threads, alignment nor device.
void EmaUpdate(std::span<const UpdateTensors> tensors, const EmaHyper& hyper,
               const StepState& state);

}  // namespace ops

// Values are the averages, of StateDType, and gradients the weights.
inline constinit Slot<void(std::span<const UpdateTensors> tensors, const EmaHyper& hyper,
                           const StepValues* values)>
    ema_update{"ema_update"};

}  // namespace lockstep
