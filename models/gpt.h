// GPT-2: Radford et al., "Language models are unsupervised multitask learners" (2019).
#pragma once

#include "core/module.h"
#include "nn/embedding.h"

namespace lockstep::models {

struct GptConfig {
  int64_t vocab_size = 50257;
  int64_t block_size = 1024;  // most tokens of one sequence: rows of the position table
  int64_t n_layer = 12;
  int64_t n_head = 12;
  int64_t n_embd = 768;
  double dropout = 0;
  bool bias = true;            // in linear layers and layer norms
  bool tie_embeddings = true;  // the output head is the token embedding
  bool operator==(const GptConfig&) const = default;
};

// ArgumentError naming the first field that is out of range or does not fit the others.
void Validate(const GptConfig& config);

// A decoder-only transformer with learned positions, pre-LN blocks, tanh GELU and an output head,
// by default tied to the token embedding. Parameters have Hugging Face's GPT-2 names (wte.weight,
// h.0.attn.c_attn.weight, ...), linear weights as [out, in]. Initialised as GPT-2: N(0, 0.02),
// residual projections N(0, 0.02 / sqrt(2 n_layer)), biases 0, norms 1.
class Gpt : public ModuleOf<Tensor(const Tensor& ids)> {
 public:
  explicit Gpt(const GptConfig& config);

  const GptConfig& config() const { return config_; }
  // Of one token in forward and backward, causal attention over t positions: 6 N + 6 L C t, as
  // llm.c counts: N is the number of parameters, L of layers, C the width.
  double FlopsPerToken(int64_t t) const;

 protected:
  // ids i32 or i64 [B, T], T <= block_size -> logits [B, T, V].
  Tensor Forward(const Tensor& ids) override;

 private:
  GptConfig config_;
  Child<nn::Embedding> wte_, wpe_;
  Child<Layer> drop_;
  ChildList<Layer> h_;
  Child<Layer> ln_f_;
  std::unique_ptr<Child<Layer>> lm_head_;  // null if tied
};

}  // namespace lockstep::models
