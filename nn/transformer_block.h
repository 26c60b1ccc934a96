// One layer of GPT-2, or of Llama.
#pragma once

#include <memory>

#include "nn/mlp.h"
#include "nn/residual_norm.h"
#include "nn/rotary.h"

namespace lockstep::nn {

struct TransformerBlockOptions {
  int64_t n_embd = 0;  // a multiple of n_head
  int64_t n_head = 0;
  bool bias = true;            // of the linear layers and the layer norms
  double dropout = 0;          // of the attention weights and of both branches
  double init_std = 0.02;      // of weights; biases start at 0
  double residual_std = 0.02;  // of the two c_proj weights; GPT-2: init_std / sqrt(2 * layers)
  int64_t n_kv_head = 0;       // 0: n_head
  int64_t n_inner = 0;         // width inside of the MLP; 0: 4 n_embd
  NormKind norm = NormKind::kLayerNorm;
  double norm_eps = 1e-5;
  MlpActivation activation = MlpActivation::kGelu;
  std::shared_ptr<Rotary> rotary;  // of queries and keys, shared by the model's layers; or null
};

// Pre-norm block, Radford et al., "Language models are unsupervised multitask learners" (2019):
//   x = x + attn(ln_1(x)); y = x + mlp(ln_2(x))
// x [B, T, n_embd] -> the same, as streams: ln_1 adds what the block before left open, and what mlp
// gives is left to the norm after this block. Children, replaceable: ln_1 and ln_2, which are
// ResidualNormLayers since a sum and its norm are one pass, attn (CausalSelfAttention) and mlp
// (Mlp), which are BranchLayers. With RMS norms,
// rotary positions and SwiGLU this is the block of Llama, Touvron et al. (2023). Parameter names
// are those of Hugging Face's GPT-2; weights of linear layers are [out, in], where its Conv1D
// stores [in, out].
class TransformerBlock : public Block {
 public:
  explicit TransformerBlock(const TransformerBlockOptions& options);

 protected:
  ResidualStream Forward(ResidualStream stream) override;

 private:
  Child<ResidualNormLayer> ln_1_;
  Child<BranchLayer> attn_;
  Child<ResidualNormLayer> ln_2_;
  Child<BranchLayer> mlp_;
};

}  // namespace lockstep::nn
