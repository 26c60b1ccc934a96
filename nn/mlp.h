// The perceptron of a transformer's blocks: GPT-2's, or Llama's gated one.
#pragma once

#include "nn/residual_stream.h"

namespace lockstep::nn {

enum class MlpActivation {
  kGelu,       // the tanh form, fused into c_fc
  kGeluExact,  // by the error function
  kRelu,
  kSilu,
  kSwiGlu,  // gated: ops::SwiGlu
};

struct MlpOptions {
  bool bias = true;
  MlpActivation activation = MlpActivation::kGelu;
  double dropout = 0;          // of the result
  double init_std = 0.02;      // of c_fc's weight; biases start at 0
  double residual_std = 0.02;  // of c_proj's weight; GPT-2: init_std / sqrt(2 * layers)
};

// y = dropout(c_proj(activation(c_fc(x)))): x [..., n_embd] -> the same, as a branch. Children,
// replaceable: c_fc, a Layer (n_embd -> hidden; kSwiGlu: -> 2 hidden, the gate before up, as one
// product), c_proj (hidden -> n_embd) and dropout, BranchLayers. What replaces c_fc must apply a
// kGelu itself.
class Mlp : public BranchLayer {
 public:
  Mlp(int64_t n_embd, int64_t hidden, const MlpOptions& options = {});

 protected:
  ops::Branch Forward(ops::Branch x) override;

 private:
  MlpActivation activation_;
  Child<Layer> c_fc_;
  Child<BranchLayer> c_proj_, dropout_;
};

}  // namespace lockstep::nn
