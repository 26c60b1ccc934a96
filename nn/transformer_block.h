// One layer of GPT-2.
#pragma once

#include "core/module.h"

namespace lockstep::nn {

struct TransformerBlockOptions {
  int64_t n_embd = 0;  // a multiple of n_head
  int64_t n_head = 0;
  bool bias = true;            // of the linear layers and the normalisations
  double dropout = 0;          // of the attention weights and of both branches
  double init_std = 0.02;      // of weights; biases start at 0
  double residual_std = 0.02;  // of the two c_proj weights; GPT-2: init_std / sqrt(2 * layers)
};

// Pre-norm block, Radford et al., "Language models are unsupervised multitask learners" (2019):
//   x = x + attn(ln_1(x)); y = x + mlp(ln_2(x))
// x [B, T, n_embd] -> the same. Children, replaceable: ln_1, attn (CausalSelfAttention), ln_2, mlp
// (Mlp, four times as wide inside). Parameter names are those of Hugging Face's GPT-2; weights of
// linear layers are [out, in], where its Conv1D stores [in, out].
class TransformerBlock : public Layer {
 public:
  explicit TransformerBlock(const TransformerBlockOptions& options);

 protected:
  Tensor Forward(const Tensor& x) override;

 private:
  Child<Layer> ln_1_, attn_, ln_2_, mlp_;
};

}  // namespace lockstep::nn
