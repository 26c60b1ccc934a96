// Tensors put side by side.
#pragma once

#include <vector>

#include "core/tensor.h"

namespace lockstep::ops {

// Joins tensors along dimension `dim` (negative counts from the end): contiguous, a copy. At least
// one tensor; all of the same dtype and device, and of the same shape except in that dimension.
// Saves nothing; each gets its part of the gradient.
Tensor Concat(const std::vector<Tensor>& tensors, int dim = 0);

// Joins tensors of the same shape, dtype and device along a new dimension, which becomes `dim` of
// the result (negative counts from its end): [n, ...] for n tensors and dim = 0. Saves nothing;
// each gets its part of the gradient.
Tensor Stack(const std::vector<Tensor>& tensors, int dim = 0);

// Copies of x side by side: counts[d] of them, at least 1, along each dimension d. For x [2, 3] and
// counts {1, 4} the result is [2, 12], contiguous. The dimensions, with those that are repeated
// counted twice, are at most 8. Saves nothing; the gradient of an element is the sum of those of
// its copies, in f32 or wider.
Tensor Repeat(const Tensor& x, const std::vector<int64_t>& counts);

}  // namespace lockstep::ops
