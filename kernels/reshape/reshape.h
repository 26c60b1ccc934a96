// The same elements in another shape or order.
#pragma once

#include "core/tensor.h"

namespace lockstep::ops {

// Any dtype. All save nothing and hand the gradient on in x's shape.

// The elements in row-major order as `shape`, one size of which may be -1. A view of a contiguous
// x, else a copy.
Tensor Reshape(const Tensor& x, const Shape& shape);
// Dimensions a and b swapped (negative counts from the end): a view, not contiguous in general.
Tensor Transpose(const Tensor& x, int a, int b);
// x itself if it is contiguous, else a copy that is.
Tensor Contiguous(const Tensor& x);

}  // namespace lockstep::ops
