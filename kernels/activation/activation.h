// Pointwise nonlinearities. GELU is in kernels/gelu.
#pragma once

#include "core/dispatcher.h"
#include "core/tensor.h"

namespace lockstep {

enum class Nonlinearity { kRelu, kTanh, kSigmoid, kSilu };

namespace ops {

// Elementwise, on any shape and floating dtype; bf16 computes in f32. NaN stays NaN. Relu saves its
// result, the others their input, because a derivative computed from a 16-bit result loses most of
// its digits.
Tensor Relu(const Tensor& x);     // max(x, 0), with derivative 0 at 0
Tensor Tanh(const Tensor& x);     // within 2e-7 in f32
Tensor Sigmoid(const Tensor& x);  // 1 / (1 + e^-x)
Tensor Silu(const Tensor& x);     // x / (1 + e^-x), Swish; the gated form is kernels/swiglu

}  // namespace ops

// x and y are contiguous and have the same dtype.
inline constinit Slot<void(Nonlinearity kind, const Tensor& x, const Tensor& y)> activation_forward{
    "activation_forward"};
// dx = dy f'(x), or dx += that. saved: x; for Relu, x or its result.
inline constinit Slot<void(Nonlinearity kind, const Tensor& saved, const Tensor& dy,
                           const Tensor& dx, bool accumulate)>
    activation_backward{"activation_backward"};

}  // namespace lockstep
