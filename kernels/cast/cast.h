// Conversion between floating dtypes.
#pragma once

#include "core/tensor.h"

namespace lockstep::ops {

// x with its values rounded to `dtype`; x itself if it already has it. Both floating. The gradient
// comes in `dtype` and is rounded to x's, or to that of x's gradient where x is a leaf. Saves
// nothing. For integers and without gradients: Tensor::To.
Tensor Cast(const Tensor& x, DType dtype);

}  // namespace lockstep::ops
