// The perceptron of a transformer's blocks: GPT-2's, or Llama's gated one.
#pragma once

#include "nn/stream/residual_stream.h"
#include "nn/transformer_options.h"

namespace lockstep::nn {

// y = dropout(c_proj(activation(c_fc(x)))): x [..., n_embd] -> the same, as a branch. Children,
// replaceable: c_fc, a Layer (n_embd -> n_inner; if gated, -> 2 n_inner, the gate before up, as one
// product), c_proj (n_inner -> n_embd) and dropout, BranchLayers. What replaces c_fc must apply a
// kGelu itself.
class Mlp : public BranchLayer {
 public:
  // Reads n_embd, n_inner, bias, activation, dropout, init_std and residual_std.
  explicit Mlp(const TransformerOptions& options);

 protected:
  ops::Branch Forward(ops::Branch x) override;

 private:
  MlpActivation activation_;
  Child<Layer> c_fc_;
  Child<BranchLayer> c_proj_, dropout_;
};

// Applies the activation to the output of c_fc, where kGelu has been applied already; gated ones
// halve the width.
Tensor ActivateMlp(MlpActivation activation, const Tensor& x);

}  // namespace lockstep::nn
