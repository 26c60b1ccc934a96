// Parts of a tensor. Views: no bytes are copied; what needs contiguous memory copies then.
#pragma once

#include <vector>

#include "core/tensor.h"

namespace lockstep::ops {

// Elements [begin, end) of dimension `dim` (negative counts from the end), as a view of x, of any
// dtype. Negative begin and end count from the end; both must lie within the dimension. Saves
// nothing; the gradient is written into its place, and what lies around it is zeroed only where no
// other gradient is yet.
Tensor Slice(const Tensor& x, int dim, int64_t begin, int64_t end);

// Consecutive parts of dimension `dim`, of the given sizes, which must add up to it. Their
// gradients are written side by side, without intermediate tensors of x's size.
std::vector<Tensor> Split(const Tensor& x, const std::vector<int64_t>& sizes, int dim);
// `parts` equal ones.
std::vector<Tensor> Split(const Tensor& x, int64_t parts, int dim);

}  // namespace lockstep::ops
