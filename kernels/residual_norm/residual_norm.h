// The residual connection and the normalisation that reads it, in one pass.
#pragma once

#include <utility>

#include "core/autograd.h"
#include "core/dispatcher.h"
#include "core/tensor.h"

namespace lockstep {

enum class NormKind {
  kLayerNorm,  // ops::LayerNorm
  kRmsNorm,    // ops::RmsNorm
};

namespace ops {

// {s, y}: s = x + branch, as ops::Residual, and y = norm(s), as ops::LayerNorm or ops::RmsNorm,
// with the bits that these give one after the other. x, branch: [..., C] of one floating dtype;
// weight: [C]; bias: [C], or undefined for none (kRmsNorm has none); both f32 or of the dtype of x.
// Saves s, weight, and per row the statistics. The gradient of s, that of its other users and that
// through the norm, is added up in one pass and handed to x and branch without a copy.
std::pair<Tensor, Tensor> ResidualNorm(NormKind kind, const Tensor& x, const Tensor& branch,
                                       const Tensor& weight, const Tensor& bias = {},
                                       double eps = 1e-5);

}  // namespace ops

// mean: [rows], undefined for kRmsNorm; bias may be undefined. Else as layer_norm_forward.
struct ResidualNormForwardArgs {
  NormKind kind = NormKind::kLayerNorm;
  Tensor x, branch;     // [rows, C]
  Tensor weight, bias;  // [C]
  double eps = 1e-5;
  Tensor sum, y;      // [rows, C], written
  Tensor mean, rstd;  // [rows], written
};
inline constinit Slot<void(const ResidualNormForwardArgs&)> residual_norm_forward{
    "residual_norm_forward"};

struct ResidualNormBackwardArgs {
  NormKind kind = NormKind::kLayerNorm;
  Tensor sum, weight, mean, rstd;
  Tensor dsum, dy;                  // [rows, C]
  Tensor dx;                        // [rows, C], written; undefined: not wanted
  GradSink::Target dweight, dbias;  // where their tensor is undefined: not wanted
};
inline constinit Slot<void(const ResidualNormBackwardArgs&)> residual_norm_backward{
    "residual_norm_backward"};

}  // namespace lockstep
