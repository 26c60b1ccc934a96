// Multiplication and division by a number.
#pragma once

#include "core/dispatcher.h"
#include "core/tensor.h"

namespace lockstep {

namespace ops {

// y = alpha x, elementwise. x: any shape and floating dtype; bf16 computes in f32. Saves nothing.
// Or x of integers (not bool), without a gradient: alpha must be one of their values, and results
// wrap around.
Tensor Scale(const Tensor& x, double alpha);

// y = x / divisor, elementwise: each a division, not a product with the inverse, whose bits differ.
// Otherwise like Scale, but only of floating tensors.
Tensor Divide(const Tensor& x, double divisor);

// x *= alpha in place, without recording: for gradients. x must be contiguous, and must not
// require a gradient while recording is on.
void ScaleInPlace(const Tensor& x, double alpha);

}  // namespace ops

inline Tensor operator*(const Tensor& x, double alpha) { return ops::Scale(x, alpha); }
inline Tensor operator*(double alpha, const Tensor& x) { return ops::Scale(x, alpha); }
inline Tensor operator/(const Tensor& x, double divisor) { return ops::Divide(x, divisor); }
inline Tensor operator-(const Tensor& x) { return ops::Scale(x, -1); }

enum class ScaleBy { kFactor, kDivisor };

// y = alpha x or x / alpha; or that is added to y. Contiguous, of the same dtype; y may be x. alpha
// is rounded to the type of the arithmetic: f64 for f64, else f32.
inline constinit Slot<void(const Tensor& x, ScaleBy by, double alpha, const Tensor& y,
                           bool accumulate)>
    scale_slot{"scale"};

}  // namespace lockstep
