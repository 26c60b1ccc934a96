// The first part of a GPT.
#pragma once

#include <memory>
#include <optional>

#include "models/gpt/gpt_config.h"
#include "nn/embedding.h"

namespace lockstep::models {

// ids i32 or i64 [B, T], T <= block_size -> drop(wte(ids) + wpe(positions)) [B, T, n_embd]; with
// rope there is no wpe, and wte(ids) may be multiplied by embed_scale, rounded to its dtype; with
// embed_norm the dropout's input is normed first, by an RMS norm without a weight.
// Children: wte and wpe, which are nn::Embeddings since both are read in one pass, and drop, a
// Layer. Throws ArgumentError for other shapes and longer sequences.
class GptEmbedding : public Layer {
 public:
  explicit GptEmbedding(const GptConfig& config);

  const nn::Embedding& wte() const { return *wte_; }

 protected:
  Tensor Forward(const Tensor& ids) override;

 private:
  int64_t block_size_;
  double scale_;
  std::optional<double> norm_eps_;  // of the norm; none: there is no norm
  Child<nn::Embedding> wte_;
  std::unique_ptr<Child<nn::Embedding>> wpe_;  // null with rope
  Child<Layer> drop_;
};

}  // namespace lockstep::models
