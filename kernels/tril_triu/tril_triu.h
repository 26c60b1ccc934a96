// Triangles of matrices.
#pragma once

#include "core/dispatcher.h"
#include "core/tensor.h"

namespace lockstep {

namespace ops {

// x with zeros above (Tril) or below (Triu) a diagonal of its last two dimensions: Tril keeps the
// elements [..., i, j] with j <= i + diagonal, Triu those with j >= i + diagonal. So 0 is the main
// diagonal, and a positive one lies to the right of it. x: any dtype and strides, of two dimensions
// or more. Elements that are not kept become 0 even where they are NaN. Saves nothing; the gradient
// of a floating x is the same triangle of dy.
Tensor Tril(const Tensor& x, int64_t diagonal = 0);
Tensor Triu(const Tensor& x, int64_t diagonal = 0);

}  // namespace ops

// x, y: [B, M, N], contiguous, of the same dtype.
inline constinit Slot<void(bool upper, int64_t diagonal, const Tensor& x, const Tensor& y)>
    triangle_slot{"triangle"};

}  // namespace lockstep
