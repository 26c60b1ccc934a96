// A choice between two tensors, element by element.
#pragma once

#include "core/dispatcher.h"
#include "core/tensor.h"

namespace lockstep {

namespace ops {

// y = a where the condition holds, else b. condition: bool; a and b: the same dtype, any dtype; all
// on one device, of any strides, with NumPy's broadcasting. The result is contiguous. Where an
// element is not taken its gradient is 0, and NaN and infinities there do not show; that of a
// broadcast operand is summed as by ops::Sum. Saves the condition.
//
// A number takes the dtype of the other operand, a tensor: it is rounded where that is floating,
// and must be one of its values where it is not. Two numbers make an f32.
Tensor Where(const Tensor& condition, const Tensor& a, const Tensor& b);
Tensor Where(const Tensor& condition, const Tensor& a, double b);
Tensor Where(const Tensor& condition, double a, const Tensor& b);
Tensor Where(const Tensor& condition, double a, double b);

}  // namespace ops

// All have y's shape; condition, a and b have any strides, y is contiguous. a, b and y have the
// same dtype.
inline constinit Slot<void(const Tensor& condition, const Tensor& a, const Tensor& b,
                           const Tensor& y)>
    where_slot{"where"};

}  // namespace lockstep
