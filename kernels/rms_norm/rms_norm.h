// RMS normalisation, Zhang and Sennrich, "Root mean square layer normalization" (2019).
#pragma once

#include "core/autograd/node.h"
#include "core/dispatcher.h"
#include "core/tensor.h"

namespace lockstep {

namespace ops {

// y = x / sqrt(mean(x^2) + eps) * weight over the last dimension. x: [..., C] floating; weight:
// [C], f32 or of the dtype of x, or undefined for none. Computes in f32 or wider and rounds once.
// Saves x, weight, and per row 1 / sqrt(mean(x^2) + eps).
//
// The gradient of weight is summed over blocks of rows that depend only on the shape.
Tensor RmsNorm(const Tensor& x, const Tensor& weight, double eps = 1e-5);

// Lets a RecomputeScope of "rms_norm" compute y = RmsNorm(x, ...) again. All contiguous.
void OfferRmsNorm(const Tensor& x, const Tensor& weight, double eps, const Tensor& y);

}  // namespace ops

// x, y: [rows, C]; weight: [C] or undefined; rstd: [rows] of f64 for an f64 x, else f32.
inline constinit Slot<void(const Tensor& x, const Tensor& weight, double eps, const Tensor& y,
                           const Tensor& rstd)>
    rms_norm_forward{"rms_norm_forward"};
// Gradients whose tensor is undefined are not computed. dx has x's dtype, dweight any floating
// dtype.
inline constinit Slot<void(const Tensor& x, const Tensor& weight, const Tensor& rstd,
                           const Tensor& dy, const GradTarget& dx, const GradTarget& dweight)>
    rms_norm_backward{"rms_norm_backward"};

}  // namespace lockstep
