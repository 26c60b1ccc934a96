// Auxiliary losses, added to a model's own from within its layers.
#pragma once

#include "core/tensor.h"

namespace lockstep::nn {

// Returns y, such that a backward through it also minimises `loss`, a scalar: the gradient with
// which the loss begins is the root gradient of the backward (core/autograd/root_gradient.h), that
// of the main loss. So both are divided by the same number of tokens, and multiplied by the same
// loss scale, whatever ranks and micro-batches there are; and a loss need not be returned by the
// model. Backward throws Error where no root gradient is known, or only the default one, 1, with
// which the loss would be too strong next to a mean.
Tensor WithAuxiliaryLoss(const Tensor& y, const Tensor& loss);

}  // namespace lockstep::nn
