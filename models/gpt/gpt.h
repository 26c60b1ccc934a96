// The language model. GPT-2: Radford et al., "Language models are unsupervised multitask learners"
// (2019). Llama: Touvron et al., "LLaMA: open and efficient foundation language models" (2023).
#pragma once

#include "models/gpt/gpt_config.h"
#include "models/gpt/language_model.h"
#include "nn/embedding.h"
#include "nn/lm_head.h"
#include "nn/residual_norm.h"

namespace lockstep::models {

// A decoder-only transformer with pre-norm blocks and an output head, by default tied to the token
// embedding. The default configuration is GPT-2's: learned positions, layer norms, tanh GELU; with
// rope, rms_norm, swiglu and no biases it is Llama. Parameters have Hugging Face's GPT-2 names
// (wte.weight, h.0.attn.c_attn.weight, ...) in any case, linear weights as [out, in]. Initialised
// as GPT-2: N(0, init_std), residual projections N(0, init_std / sqrt(2 n_layer)), biases 0,
// norms 1.
class Gpt : public LanguageModel {
 public:
  explicit Gpt(const GptConfig& config);

  const GptConfig& config() const { return config_; }  // Resolved
  // Of one token in forward and backward, causal attention over t positions: 6 N + 6 L C t, as
  // llm.c counts: N is the number of parameters, L of layers, C the width.
  double FlopsPerToken(int64_t t) const;

 protected:
  // ids i32 or i64 [B, T], T <= block_size -> logits [B, T, V], or the loss of the targets. In an
  // nn::KvCacheScope the ids go on with its sequences, and the logits are those of the last token
  // alone: [B, 1, V].
  Tensor Forward(const Tensor& ids, const Tensor& targets) override;

 private:
  GptConfig config_;
  Child<nn::Embedding> wte_;
  std::unique_ptr<Child<nn::Embedding>> wpe_;  // null with rope
  Child<Layer> drop_;
  ChildList<Layer> h_;
  Child<nn::ResidualNormLayer> ln_f_;
  std::unique_ptr<Child<nn::LmHeadLayer>> lm_head_;  // null if tied
};

}  // namespace lockstep::models
