// Stochastic gradient descent with momentum: Polyak (1964); Nesterov (1983), in the form of
// Sutskever et al., "On the importance of initialization and momentum in deep learning" (2013).
#pragma once

#include <span>

#include "core/dispatcher.h"
#include "kernels/update.h"

namespace lockstep {

inline constexpr const char* kSgdStates[] = {"momentum_buffer"};  // none where momentum is 0

struct SgdHyper {
  double momentum = 0;
  bool nesterov = false;
};

namespace ops {

// torch.optim.SGD's update:
//   g = grad * clip_factor / loss_scale + weight_decay p
//   m = momentum m + g;   p = p - lr (nesterov ? g + momentum m : m)
// and p = p - lr g where momentum is 0. Weight decay is coupled: part of the gradient. See
// kernels/update.h. Every element is computed by exactly rounded operations only
// (kernels/sgd/sgd_math.h), so the bits depend on neither threads, alignment nor device.
void SgdUpdate(std::span<const UpdateTensors> tensors, const SgdHyper& hyper,
               const StepState& state);

}  // namespace ops

inline constinit Slot<void(std::span<const UpdateTensors> tensors, const SgdHyper& hyper,
                           const StepValues* values)>
    sgd_update{"sgd_update"};

}  // namespace lockstep
