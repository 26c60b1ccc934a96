// One layer of GPT-2, of Llama, or of what came after them.
#pragma once

#include <memory>

#include "nn/stream/residual_norm.h"
#include "nn/transformer_options.h"

namespace lockstep::nn {

// Pre-norm block, Radford et al., "Language models are unsupervised multitask learners" (2019):
//   x = x + attn(ln_1(x)); y = x + mlp(ln_2(x))
// x [B, T, n_embd] -> the same, as streams: ln_1 adds what the block before left open, and the
// output of mlp is left to the norm after this block. Children, replaceable: ln_1 and ln_2, which
// are ResidualNormLayers since a sum and its norm are one pass, attn (CausalSelfAttention) and mlp
// (Mlp, or MixtureOfExperts), which are BranchLayers. With other places of the norms:
//   kPost      x = x + ln_1_out(attn(x)); y = x + ln_2_out(mlp(x))
//   kSandwich  x = x + ln_1_out(attn(ln_1(x))); y = x + ln_2_out(mlp(ln_2(x)))
// where ln_1_out and ln_2_out are BranchNorms, and kPost has no ln_1 and ln_2. With embed_mix a
// further child, mix (StreamMix), comes first: x = a x + b x0. With RMS norms,
// rotary positions and SwiGLU this is the block of Llama, Touvron et al. (2023), with experts that
// of Mixtral. Parameter names are those of Hugging Face's GPT-2; weights of linear layers are [out,
// in], where its Conv1D stores [in, out].
class TransformerBlock : public Block {
 public:
  explicit TransformerBlock(const TransformerOptions& options);

  Child<BranchLayer>& attn() { return attn_; }
  Child<BranchLayer>& mlp() { return mlp_; }

 protected:
  ResidualStream Forward(ResidualStream stream) override;

 private:
  // Null where there is no such module.
  std::unique_ptr<Child<ResidualNormLayer>> mix_;
  std::unique_ptr<Child<ResidualNormLayer>> ln_1_;
  Child<BranchLayer> attn_;
  std::unique_ptr<Child<BranchLayer>> ln_1_out_;
  std::unique_ptr<Child<ResidualNormLayer>> ln_2_;
  Child<BranchLayer> mlp_;
  std::unique_ptr<Child<BranchLayer>> ln_2_out_;
};

}  // namespace lockstep::nn
