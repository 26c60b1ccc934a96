// The two-layer perceptron of GPT-2's blocks.
#pragma once

#include "core/module.h"

namespace lockstep::nn {

struct MlpOptions {
  bool bias = true;
  double dropout = 0;          // of the result
  double init_std = 0.02;      // of c_fc's weight; biases start at 0
  double residual_std = 0.02;  // of c_proj's weight; GPT-2: init_std / sqrt(2 * layers)
};

// y = dropout(c_proj(gelu(c_fc(x)))): x [..., n_embd] -> the same. Children, replaceable: c_fc
// (n_embd -> hidden; its GELU, in the tanh form, is fused into the layer), c_proj (hidden ->
// n_embd), dropout. What replaces c_fc must apply the activation itself.
class Mlp : public Layer {
 public:
  Mlp(int64_t n_embd, int64_t hidden, const MlpOptions& options = {});

 protected:
  Tensor Forward(const Tensor& x) override;

 private:
  Child<Layer> c_fc_, c_proj_, dropout_;
};

}  // namespace lockstep::nn
