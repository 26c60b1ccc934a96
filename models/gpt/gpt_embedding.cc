#include "models/gpt/gpt_embedding.h"

#include "kernels/rms_norm/rms_norm.h"
#include "kernels/scale/scale.h"
#include "nn/documents.h"
#include "nn/dropout.h"
#include "nn/init.h"
#include "nn/kv_cache.h"

namespace lockstep::models {
namespace {

std::shared_ptr<nn::Embedding> MakeEmbedding(int64_t num, const GptConfig& config) {
  return std::make_shared<nn::Embedding>(num, config.n_embd, nn::Normal(0, config.init_std));
}

// Optional, but if present a child between wte and drop: children keep the order of registration.
std::unique_ptr<Child<nn::Embedding>> Positions(Module* owner, const GptConfig& config) {
  if (config.position != Position::kLearned) return nullptr;
  return std::make_unique<Child<nn::Embedding>>(owner, "wpe",
                                                MakeEmbedding(config.block_size, config));
}

// As in Gemma, whose sqrt(n_embd) is a tensor of the embedding's dtype.
Tensor Scaled(const Tensor& x, double scale) {
  if (scale == 1) return x;
  return x * Tensor::Full({1}, scale, x.dtype()).To(DType::kF64).ToVector<double>()[0];
}

}  // namespace

GptEmbedding::GptEmbedding(const GptConfig& config)
    : block_size_(config.block_size),
      scale_(config.embed_scale),
      norm_eps_(config.embed_norm ? std::optional(config.norm_eps) : std::nullopt),
      wte_(this, "wte", MakeEmbedding(config.vocab_size, config)),
      wpe_(Positions(this, config)),
      drop_(this, "drop", std::make_shared<nn::Dropout>(config.dropout)) {}

Tensor GptEmbedding::Forward(const Tensor& ids) {
  LS_CHECK(ids.defined() && ids.ndim() == 2, "a GPT takes ids of shape [B, T], got ",
           ids.Describe());
  LS_CHECK(ids.dim(1) <= block_size_, "a sequence of ", ids.dim(1),
           " tokens is longer than the model's block_size = ", block_size_);
  const Tensor x = nn::AtPositions(ids, [&](const Tensor& part, int64_t first_position) {
    if (!wpe_) return Scaled(wte_(part), scale_);
    nn::Embedding &wte = *wte_, &wpe = **wpe_;
    return wte.WithHooks([&] {
      return wpe.WithHooks([&] {
        return wte.AddPositions(part, *wpe.weight(), first_position,
                                nn::CurrentDocuments().positions);
      });
    });
  });
  return drop_(norm_eps_ ? ops::RmsNorm(x, {}, *norm_eps_) : x);
}

}  // namespace lockstep::models
