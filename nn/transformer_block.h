// One layer of GPT-2, or of Llama.
#pragma once

#include <memory>
#include <utility>

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
// x [B, T, n_embd] -> the same. Children, replaceable: ln_1, attn (CausalSelfAttention), ln_2, mlp
// (Mlp); the norms are ResidualNormLayers, since a sum and its norm are one pass. With RMS norms,
// rotary positions and SwiGLU this is the block of Llama, Touvron et al. (2023). Parameter names
// are those of Hugging Face's GPT-2; weights of linear layers are [out, in], where its Conv1D
// stores [in, out].
class TransformerBlock : public Layer {
 public:
  explicit TransformerBlock(const TransformerBlockOptions& options);

  // A block between others: its input is x + Complete(branch), or x where there is no branch, and
  // so is its output; ln_1, and the norm after this block, add them up. Runs the hooks of
  // operator().
  std::pair<Tensor, ops::Branch> Continue(const Tensor& x, const ops::Branch& branch);

 protected:
  Tensor Forward(const Tensor& x) final;

 private:
  // {the sum after attention, its norm}
  std::pair<Tensor, Tensor> Attend(const Tensor& x, const ops::Branch& branch);

  Child<ResidualNormLayer> ln_1_;
  Child<Layer> attn_;
  Child<ResidualNormLayer> ln_2_;
  Child<Layer> mlp_;
};

}  // namespace lockstep::nn
