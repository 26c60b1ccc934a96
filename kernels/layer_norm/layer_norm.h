// Layer normalisation, Ba, Kiros and Hinton, "Layer normalization" (2016).
#pragma once

#include "core/autograd/node.h"
#include "core/dispatcher.h"
#include "core/tensor.h"

namespace lockstep {

namespace ops {

// y = (x - mean) / sqrt(variance + eps) * weight + bias over the last dimension, with the biased
// variance. x: [..., C] floating; weight: [C]; bias: [C], or undefined for none. weight and bias
// are f32 or have the dtype of x. Computes in f32 or wider, the variance in a second pass over the
// centred values. Saves x, weight, and per row the mean and 1 / sqrt(variance + eps).
//
// The gradients of weight and bias are summed over blocks of rows that depend only on the shape.
Tensor LayerNorm(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, double eps = 1e-5);

// Lets a RecomputeScope of "layer_norm" compute y = LayerNorm(x, ...) again. All contiguous.
void OfferLayerNorm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                    const Tensor& y);

}  // namespace ops

// x, y: [rows, C]; mean, rstd: [rows] of f64 for an f64 x, else f32; bias may be undefined.
inline constinit Slot<void(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                           const Tensor& y, const Tensor& mean, const Tensor& rstd)>
    layer_norm_forward{"layer_norm_forward"};
// Gradients whose tensor is undefined are not computed. dx has x's dtype, the others any floating
// dtype.
inline constinit Slot<void(const Tensor& x, const Tensor& weight, const Tensor& mean,
                           const Tensor& rstd, const Tensor& dy, const GradTarget& dx,
                           const GradTarget& dweight, const GradTarget& dbias)>
    layer_norm_backward{"layer_norm_backward"};

}  // namespace lockstep
