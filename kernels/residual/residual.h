// The residual connection, He et al., "Deep residual learning for image recognition" (2016).
#pragma once

#include "core/dispatcher.h"
#include "core/tensor.h"

namespace lockstep {

namespace ops {

// y = x + branch, elementwise; both of the same shape, floating dtype and device. 16-bit floats are
// added in f32. Saves nothing; the gradient is handed on to both without a copy.
Tensor Residual(const Tensor& x, const Tensor& branch);

}  // namespace ops

// All contiguous; y may be x or branch.
inline constinit Slot<void(const Tensor& x, const Tensor& branch, const Tensor& y)>
    residual_forward{"residual_forward"};

}  // namespace lockstep
