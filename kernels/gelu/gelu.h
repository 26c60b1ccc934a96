// GELU, Hendrycks and Gimpel, "Gaussian error linear units" (2016).
#pragma once

#include "core/dispatcher.h"
#include "core/tensor.h"

namespace lockstep {

enum class GeluForm {
  kTanh,   // x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))): the approximation that GPT-2 uses
  kExact,  // x/2 (1 + erf(x / sqrt(2)))
};

namespace ops {

// Elementwise. x: any shape and floating dtype; bf16 computes in f32. Saves x.
Tensor Gelu(const Tensor& x, GeluForm form = GeluForm::kTanh);

// Lets a RecomputeScope of "gelu" compute y = gelu(x) again. x: contiguous.
void OfferGelu(GeluForm form, const Tensor& x, const Tensor& y);

}  // namespace ops

inline constinit Slot<void(GeluForm form, const Tensor& x, const Tensor& y)> gelu_forward{
    "gelu_forward"};
// dx = dy * gelu'(x), or dx += that.
inline constinit Slot<void(GeluForm form, const Tensor& x, const Tensor& dy, const Tensor& dx,
                           bool accumulate)>
    gelu_backward{"gelu_backward"};

}  // namespace lockstep
