// Stochastic gradient descent with momentum: Polyak (1964); Nesterov (1983), in the form of
// Sutskever et al., "On the importance of initialization and momentum in deep learning" (2013).
#pragma once

#include <span>

#include "core/dispatcher.h"
#include "core/step_state.h"
#include "core/tensor.h"

namespace lockstep {

// One parameter's part of an update. All of one shape, contiguous, on the state's device.
struct SgdTensors {
  Tensor value;     // f64, f32 or bf16; written
  Tensor grad;      // floating
  Tensor momentum;  // f64 for an f64 value, else f32; written; unused where momentum is 0
  Tensor master;    // undefined, or the f32 original of a 16-bit value; written
  double weight_decay = 0;
};

struct SgdHyper {
  double momentum = 0;
  bool nesterov = false;
};

namespace ops {

// torch.optim.SGD's update of all parameters at once:
//   g = grad * clip_factor / loss_scale + weight_decay p
//   m = momentum m + g;   p = p - lr (nesterov ? g + momentum m : m)
// and p = p - lr g where momentum is 0. Weight decay is coupled: part of the gradient. lr and the
// factors are read from the state on its device. Where found_inf is set nothing changes, not a bit.
// Every element is computed by exactly rounded operations alone (kernels/sgd/sgd_math.h), so the
// bits depend on neither threads, alignment nor device. Throws ArgumentError.
void SgdUpdate(std::span<const SgdTensors> tensors, const SgdHyper& hyper, const StepState& state);

}  // namespace ops

inline constinit Slot<void(std::span<const SgdTensors> tensors, const SgdHyper& hyper,
                           const StepValues* values)>
    sgd_update{"sgd_update"};

}  // namespace lockstep
