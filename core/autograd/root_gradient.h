// The gradient with which a step's loss begins its backward, for auxiliary losses.
#pragma once

#include "core/tensor.h"

namespace lockstep {

// The root gradient of this thread's backward: 1 / (tokens of the global batch), times the loss
// scale, in a training step. Losses that hang on results within the model (nn::WithAuxiliaryLoss)
// begin with it, so that they are means over the same tokens as the main loss, whatever the plan.
// Backward of one root with one element declares it, if the root's gradient is given: a default of
// 1 does not tell whether the loss is a sum over tokens or a mean, next to which sums would be too
// strong. Undefined outside of such a backward.
Tensor RootGradient();

// Declares it where a backward begins from something else than the loss: in a pipeline's stages
// before the last. `gradient` has one element.
class RootGradientScope {
 public:
  explicit RootGradientScope(const Tensor& gradient);
  ~RootGradientScope();
  RootGradientScope(const RootGradientScope&) = delete;
  RootGradientScope& operator=(const RootGradientScope&) = delete;

 private:
  Tensor gradient_;
  const Tensor* previous_;
};

}  // namespace lockstep
