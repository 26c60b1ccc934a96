// The language model. GPT-2: Radford et al., "Language models are unsupervised multitask learners"
// (2019). Llama: Touvron et al., "LLaMA: open and efficient foundation language models" (2023).
#pragma once

#include <functional>
#include <string_view>
#include <utility>

#include "models/gpt/gpt_config.h"
#include "models/gpt/gpt_embedding.h"
#include "models/gpt/gpt_head.h"
#include "models/gpt/language_model.h"
#include "nn/stream/residual_stream.h"

namespace lockstep::models {

// A decoder-only transformer with an output head, by default tied to the token
// embedding. The default configuration is GPT-2's: learned positions, layer norms, tanh GELU; with
// rope, rms_norm, swiglu and no biases it is Llama, and further options make the families of
// models/gpt/README.md. Parameters always
// have Hugging Face's GPT-2 names (wte.weight, h.0.attn.c_attn.weight, ...), with linear weights as
// [out, in]. Initialised like GPT-2: N(0, init_std), residual projections N(0, init_std / sqrt(2
// n_layer)), biases 0, norms 1; with init_zero residual projections and an untied head are 0.
class Gpt : public LanguageModel {
 public:
  explicit Gpt(const GptConfig& config);

  const GptConfig& config() const { return config_; }  // Resolved
  // The number of weights: all parameters, plus the weights of quantised layers, which are not
  // parameters.
  int64_t NumWeights() const;
  // The parameters that a token uses: in a mixture, without the experts that it is not routed to.
  int64_t NumActiveParameters() const;
  // FLOPs per token of forward and backward with causal attention over t positions: 6 N + 6 L C t,
  // as llm.c counts, for N active parameters, L layers and heads that are C wide together; a layer
  // with a window w < t counts w (2 - w / t) instead of t, a frozen parameter 4 instead of 6, and
  // the embeddings of values nothing.
  double FlopsPerToken(int64_t t) const;

  // The parts, in the order in which they run, each callable by itself:
  //   nn::ResidualStream stream = gpt.Embedded(ids);  // by embedding()
  //   for (int64_t i = 0; i < gpt.blocks().size(); ++i)
  //     stream = gpt.blocks()[i](std::move(stream));  // with value_embed in a TokenScope
  //   Tensor loss = gpt.head()(std::move(stream), targets);
  // A pipeline cuts between them. ReplaceChild("h.3", ...) wraps or replaces a block, also with a
  // plain Layer. Embedding and head have no names: their children are wte, wpe, drop, and ln_f,
  // lm_head.
  Child<Layer>& embedding() { return embedding_; }
  nn::ResidualStream Embedded(const Tensor& ids);
  ChildList<nn::Block>& blocks() { return h_; }
  // What all parts but the head make of ids: for callers that want logits of some positions only.
  // Its x is undefined on a rank of a pipeline that does not have the head.
  nn::ResidualStream Stream(const Tensor& ids);
  Child<GptHeadLayer>& head() { return head_; }

  // Where ranks have different parts of the model (models/train/pipeline_parallel.h): from now on
  // these make Stream and forwards. Empty: the parts do, as at first.
  struct RanksOfParts {
    std::function<nn::ResidualStream(const Tensor& ids)> stream;
    std::function<Tensor(const Tensor& ids, const Tensor& targets)> forward;
  };
  void SetRanks(RanksOfParts ranks) { ranks_ = std::move(ranks); }

 protected:
  // ids i32 or i64 [B, T], T <= block_size -> logits [B, T, V], or the loss of the targets. In an
  // nn::KvCacheScope the ids continue its sequences, and the logits are those of the last token
  // only: [B, 1, V].
  Tensor Forward(const Tensor& ids, const Tensor& targets) override;

 private:
  Gpt(const GptConfig& resolved, const std::shared_ptr<GptEmbedding>& embedding);

  GptConfig config_;
  Child<Layer> embedding_;
  ChildList<nn::Block> h_;
  Child<GptHeadLayer> head_;
  RanksOfParts ranks_;
};

// Whether a parameter of a Gpt is the matrix of a linear map within a block: no table, and not of
// what chooses experts, whose rows are scores apart. Experts' matrices, which are stacked, are not
// among them either.
bool IsLinearMap(std::string_view name, const Parameter& p);

}  // namespace lockstep::models
