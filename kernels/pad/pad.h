// Tensors with a margin around them.
#pragma once

#include <utility>
#include <vector>

#include "core/tensor.h"

namespace lockstep::ops {

// x in the middle of a larger tensor, whose other elements are `value`. margins[d] says how many
// elements dimension d gets {before, after}, none of them negative: one pair for each dimension, in
// NumPy's order, which is the reverse of PyTorch's. x: any dtype and strides; y: contiguous, a
// copy. The value is rounded where x is floating, and must be one of its dtype's where it is not.
// Saves nothing; the gradient is that part of dy.
//   ops::Pad(x, {{0, 0}, {1, 2}})   of [2, 3]: [2, 6]
Tensor Pad(const Tensor& x, const std::vector<std::pair<int64_t, int64_t>>& margins,
           double value = 0);

}  // namespace lockstep::ops
