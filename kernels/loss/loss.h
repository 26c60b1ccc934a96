// Elementwise losses between a prediction and a target.
#pragma once

#include "core/dispatcher.h"
#include "core/tensor.h"
#include "kernels/reduction.h"

namespace lockstep {

enum class LossKind { kMse, kL1, kBceWithLogits };

namespace ops {

// x and target: the same shape, floating dtype and device, any strides. The result is f64 for f64,
// else f32: a scalar, or of their shape for kNone. The mean of no elements is an error. Both get
// their gradient where they need one; both are saved. NaN gives NaN, and so does its gradient.

// (x - target)^2.
Tensor MseLoss(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::kMean);
// |x - target|, with derivative 0 at 0.
Tensor L1Loss(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::kMean);
// -(target ln p + (1 - target) ln(1 - p)) with p = 1 / (1 + e^-x), without computing p: exact for
// logits of any size, and 0 for an infinite one on the side of a target of 0 or 1. target: the
// probability of the class, in [0, 1] (not checked).
Tensor BceWithLogits(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::kMean);

}  // namespace ops

// Contiguous tensors of one shape. y and dy: f64 for f64, else f32.
inline constinit Slot<void(LossKind kind, const Tensor& x, const Tensor& target, const Tensor& y)>
    loss_forward{"loss_forward"};
// The gradient of x (which = 0) or of target (1): dx = dy * derivative, or dx += that.
inline constinit Slot<void(LossKind kind, int which, const Tensor& x, const Tensor& target,
                           const Tensor& dy, const Tensor& dx, bool accumulate)>
    loss_backward{"loss_backward"};

}  // namespace lockstep
