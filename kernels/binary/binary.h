// Arithmetic on two tensors, with broadcasting, and on a tensor and a number.
#pragma once

#include "core/dispatcher.h"
#include "core/tensor.h"

namespace lockstep {

enum class BinaryOp { kAdd, kSub, kMul, kDiv, kMaximum, kMinimum, kPow };

namespace ops {

// y = a + b, a - b, a * b, a / b, elementwise, with NumPy's broadcasting: shapes are aligned at
// their last dimension, and sizes of 1 or missing ones are repeated. a and b: the same floating
// dtype and device, any strides; 16-bit floats compute in f32. Mul and Div save those that the
// gradients need. The gradient of a broadcast operand is summed as by ops::Sum. There are no forms
// that write into a: what is saved for backward must stay as it is.
//
// Add, Sub, Mul, Maximum and Minimum also take integers (i64, i32, u16, u8) of the same dtype,
// whose results wrap around, and have no gradient; a number operand must be one of their values.
Tensor Add(const Tensor& a, const Tensor& b);
Tensor Sub(const Tensor& a, const Tensor& b);
Tensor Mul(const Tensor& a, const Tensor& b);
Tensor Div(const Tensor& a, const Tensor& b);
// The larger and the smaller of a and b; NaN if either is. The gradient goes to the one that was
// taken, in halves to both where they are equal, and to neither where one is NaN. Saves both.
Tensor Maximum(const Tensor& a, const Tensor& b);
Tensor Minimum(const Tensor& a, const Tensor& b);
// a^b, as C's pow: NaN for a negative a unless b is an integer. The gradient of a is 0 where b is
// 0, that of b is 0 where a is 0 and NaN where a is negative. Saves both.
Tensor Pow(const Tensor& a, const Tensor& b);

// With a number, which is rounded to the type of the arithmetic (f64 for f64, else f32) and not to
// x's. Div and Pow save x or their result, Maximum and Minimum x. Where x equals the number, their
// gradient goes to x, as in ops::Clamp, which they are; with NaN as the number all is NaN, without
// a gradient. x^number is in kernels/unary, products and
// quotients by a number are in kernels/scale.
Tensor Add(const Tensor& x, double number);
Tensor Sub(const Tensor& x, double number);
Tensor Sub(double number, const Tensor& x);
Tensor Div(double number, const Tensor& x);
Tensor Maximum(const Tensor& x, double number);
Tensor Minimum(const Tensor& x, double number);
inline Tensor Maximum(double number, const Tensor& x) { return Maximum(x, number); }
inline Tensor Minimum(double number, const Tensor& x) { return Minimum(x, number); }
Tensor Pow(double number, const Tensor& x);

}  // namespace ops

inline Tensor operator+(const Tensor& a, const Tensor& b) { return ops::Add(a, b); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return ops::Sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return ops::Mul(a, b); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return ops::Div(a, b); }
inline Tensor operator+(const Tensor& x, double number) { return ops::Add(x, number); }
inline Tensor operator+(double number, const Tensor& x) { return ops::Add(x, number); }
inline Tensor operator-(const Tensor& x, double number) { return ops::Sub(x, number); }
inline Tensor operator-(double number, const Tensor& x) { return ops::Sub(number, x); }
inline Tensor operator/(double number, const Tensor& x) { return ops::Div(number, x); }

// y = a op b. All have y's shape; a and b have any strides (0 where broadcast), y contiguous.
inline constinit Slot<void(BinaryOp op, const Tensor& a, const Tensor& b, const Tensor& y)>
    binary_forward{"binary_forward"};
// What dy contributes to the gradient of operand `which` (0: a, 1: b), element by element before
// any sum, or dx += that. Not called where that is dy itself. For Mul, Maximum and Minimum `which`
// is 0: the gradient of b is that of a with a and b exchanged. dx: contiguous, of y's shape; its
// dtype, or f32 for a 16-bit one, which is then never added to. a and b as in forward; an
// operand may be undefined where the formula does not use it (Add and Sub: both; Mul: a; Div by a:
// a).
inline constinit Slot<void(BinaryOp op, int which, const Tensor& a, const Tensor& b,
                           const Tensor& dy, const Tensor& dx, bool accumulate)>
    binary_backward{"binary_backward"};

}  // namespace lockstep
