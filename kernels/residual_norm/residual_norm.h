// The residual connection, with the bias and the dropout of its branch, and the normalisation that
// reads it, in one pass.
#pragma once

#include <utility>

#include "core/autograd/node.h"
#include "core/dispatcher.h"
#include "core/step_state.h"
#include "core/tensor.h"
#include "kernels/dropout/dropout_mask.h"

namespace lockstep {

enum class NormKind {
  kLayerNorm,  // ops::LayerNorm
  kRmsNorm,    // ops::RmsNorm
};

namespace ops {

// What a branch adds to its residual connection: Dropout(value + bias, dropout, site), whose bias
// and dropout are left to the operation that adds it. Made from a tensor: that tensor, complete.
struct Branch {
  Branch() = default;
  Branch(const Tensor& complete) : value(complete) {}

  Tensor value;        // [..., C]; undefined: there is no branch
  Tensor bias;         // [C], f32 or value's dtype; undefined: none
  double dropout = 0;  // as ops::Dropout, so only in a TrainingScope
  uint64_t site = 0;
};

// The tensor that a branch stands for.
Tensor Complete(const Branch& branch);

// For modules that return branches; see core/module.h.
template <class F>
void ForEachTensor(const Branch& branch, const F& f) {
  f(branch.value);
  f(branch.bias);
}

// {s, y}: s = x + Complete(branch), and y = norm(s), as ops::LayerNorm or ops::RmsNorm, in one pass
// each way. x, branch.value: [..., C] of the same floating dtype; weight: [C], of
// kRmsNorm perhaps undefined for none; bias: [C], or undefined for none (kRmsNorm has none); both
// f32 or of the dtype of x. s is rounded once, y
// computed from the rounded s; so for a complete branch both have the bits of the ops one after the
// other. Saves s, weight, per row the statistics, and the key of dropout's mask. The gradient of s,
// from its other users and through the norm, is added up in one pass and handed to x and branch
// without a copy, to branch times the mask if there is dropout; the sums over its rows are the
// gradient of the branch's bias. `part`: x and the branch have only a part of each sample.
std::pair<Tensor, Tensor> ResidualNorm(NormKind kind, const Tensor& x, const Branch& branch,
                                       const Tensor& weight, const Tensor& bias = {},
                                       double eps = 1e-5, SamplePart part = {});

}  // namespace ops

// mean: [rows], undefined for kRmsNorm, whose weight may be; the biases may be undefined. Otherwise
// as layer_norm_forward.
struct ResidualNormForwardArgs {
  NormKind kind = NormKind::kLayerNorm;
  Tensor x, branch;    // [rows, C]
  Tensor branch_bias;  // [C]
  // The branch's dropout; values is null where it has none.
  const StepValues* values = nullptr;
  double dropout = 0;
  uint64_t site = 0;
  int64_t per_sample = 0;  // elements
  SamplePart part;
  Tensor key;           // as dropout_forward, written
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
  Tensor dsum, dy;  // [rows, C]
  Tensor dx;        // [rows, C], written; undefined: not needed, nor what follows from it
  // The branch's dropout; the key is undefined where it has none, and dbranch is dx then.
  Tensor key;
  double dropout = 0;
  int64_t per_sample = 0;
  SamplePart part;
  Tensor dbranch;  // [rows, C], written
  // Those whose tensor is undefined are not needed.
  GradTarget dweight, dbias, dbranch_bias;
};
inline constinit Slot<void(const ResidualNormBackwardArgs&)> residual_norm_backward{
    "residual_norm_backward"};

}  // namespace lockstep
