// Arithmetic on two tensors, with broadcasting.
#pragma once

#include "core/dispatcher.h"
#include "core/tensor.h"

namespace lockstep {

enum class BinaryOp { kAdd, kSub, kMul, kDiv };

namespace ops {

// y = a + b, a - b, a * b, a / b, elementwise, with NumPy's broadcasting: shapes are aligned at
// their last dimension, and sizes of 1 or missing ones are repeated. a and b: the same floating
// dtype and device, any strides; 16-bit floats compute in f32. Mul and Div save those that the
// gradients need. The gradient of a broadcast operand is summed as by ops::Sum.
Tensor Add(const Tensor& a, const Tensor& b);
Tensor Sub(const Tensor& a, const Tensor& b);
Tensor Mul(const Tensor& a, const Tensor& b);
Tensor Div(const Tensor& a, const Tensor& b);

}  // namespace ops

inline Tensor operator+(const Tensor& a, const Tensor& b) { return ops::Add(a, b); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return ops::Sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return ops::Mul(a, b); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return ops::Div(a, b); }

// y = a op b. All have y's shape; a and b have any strides (0 where broadcast), y contiguous.
inline constinit Slot<void(BinaryOp op, const Tensor& a, const Tensor& b, const Tensor& y)>
    binary_forward{"binary_forward"};
// What dy contributes to the gradient of operand `which` (0: a, 1: b), element by element before
// any sum, or dx += that. Not called where that is dy itself. dx: contiguous, of y's shape; its
// dtype, or f32 for a 16-bit one. a and b as in forward; operands that the formula does not use
// (Add and Sub: both; Mul: x itself; Div by a: a) may be undefined.
inline constinit Slot<void(BinaryOp op, int which, const Tensor& a, const Tensor& b,
                           const Tensor& dy, const Tensor& dx, bool accumulate)>
    binary_backward{"binary_backward"};

}  // namespace lockstep
