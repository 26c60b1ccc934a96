#include "models/gpt/gpt.h"

#include <cmath>
#include <tuple>

#include "kernels/residual/residual.h"
#include "kernels/token_position_embedding/token_position_embedding.h"
#include "nn/dropout.h"
#include "nn/init.h"
#include "nn/kv_cache.h"
#include "nn/residual_norm.h"
#include "nn/rotary.h"
#include "nn/transformer_block.h"

namespace lockstep::models {
namespace {

GptConfig Checked(const GptConfig& config) {
  Validate(config);
  return Resolved(config);
}

std::shared_ptr<nn::Embedding> MakeEmbedding(int64_t num, const GptConfig& config) {
  return std::make_shared<nn::Embedding>(num, config.n_embd, nn::Normal(0, config.init_std));
}

std::vector<std::shared_ptr<Layer>> Blocks(const GptConfig& config) {
  nn::TransformerBlockOptions options{.n_embd = config.n_embd,
                                      .n_head = config.n_head,
                                      .bias = config.bias,
                                      .dropout = config.dropout,
                                      .init_std = config.init_std};
  // 2 * n_layer branches add up in the residual stream.
  options.residual_std = config.init_std / std::sqrt(2.0 * static_cast<double>(config.n_layer));
  options.n_kv_head = config.n_kv_head;
  options.n_inner = config.n_inner;
  options.norm = config.norm;
  options.norm_eps = config.norm_eps;
  options.activation = config.activation;
  if (config.position == Position::kRope) {
    options.rotary = std::make_shared<nn::Rotary>(config.n_embd / config.n_head, config.rope);
  }
  std::vector<std::shared_ptr<Layer>> blocks;
  for (int64_t i = 0; i < config.n_layer; ++i) {
    blocks.push_back(std::make_shared<nn::TransformerBlock>(options));
  }
  return blocks;
}

// A child only where it is wanted, between others whose order it must keep.
std::unique_ptr<Child<nn::Embedding>> Positions(Module* owner, const GptConfig& config) {
  if (config.position != Position::kLearned) return nullptr;
  return std::make_unique<Child<nn::Embedding>>(owner, "wpe",
                                                MakeEmbedding(config.block_size, config));
}

}  // namespace

Gpt::Gpt(const GptConfig& config)
    : config_(Checked(config)),
      wte_(this, "wte", MakeEmbedding(config_.vocab_size, config_)),
      wpe_(Positions(this, config_)),
      drop_(this, "drop", std::make_shared<nn::Dropout>(config_.dropout)),
      h_(this, "h", Blocks(config_)),
      ln_f_(this, "ln_f",
            std::make_shared<nn::ResidualNorm>(
                config_.n_embd,
                nn::NormOptions{
                    .kind = config_.norm, .bias = config_.bias, .eps = config_.norm_eps})) {
  if (!config.tie_embeddings) {
    lm_head_ = std::make_unique<Child<nn::LmHeadLayer>>(
        this, "lm_head",
        std::make_shared<nn::LmHead>(config.n_embd, config.vocab_size,
                                     nn::Normal(0, config.init_std), config.loss_chunk));
  }
}

double Gpt::FlopsPerToken(int64_t t) const {
  return 6.0 * static_cast<double>(NumParameters()) +
         6.0 * static_cast<double>(config_.n_layer * config_.n_embd * t);
}

Tensor Gpt::Forward(const Tensor& ids, const Tensor& targets) {
  LS_CHECK(ids.defined() && ids.ndim() == 2, "a GPT takes ids of shape [B, T], got ",
           ids.Describe());
  LS_CHECK(ids.dim(1) <= config_.block_size, "a sequence of ", ids.dim(1),
           " tokens is longer than the model's block_size = ", config_.block_size);
  Tensor x = drop_(nn::AtPositions(ids, [&](const Tensor& part, int64_t first_position) {
    return wpe_ ? ops::TokenPositionEmbedding(part, *wte_->weight(), *(*wpe_)->weight(),
                                              first_position)
                : (*wte_)(part);
  }));
  ops::Branch branch;  // of the last block: each norm adds what comes before it
  for (int64_t i = 0; i < h_.size(); ++i) {
    if (auto* block = dynamic_cast<nn::TransformerBlock*>(&*h_[i])) {
      std::tie(x, branch) = block->Continue(x, branch);
    } else {
      x = h_[i](branch.value.defined() ? ops::Residual(x, ops::Complete(branch)) : x);
      branch = {};
    }
  }
  // Only what follows the last token is asked for when text is generated.
  if (nn::KvCacheScope::Current() != nullptr) {
    for (Tensor* t : {&x, &branch.value}) {
      if (t->defined()) *t = t->Slice(1, t->dim(1) - 1, t->dim(1));
    }
  }
  x = ln_f_(x, branch).second;
  if (lm_head_) return (*lm_head_)(x, targets);
  return nn::LogitsOrLoss(x, *wte_->weight(), targets, config_.loss_chunk);
}

}  // namespace lockstep::models
