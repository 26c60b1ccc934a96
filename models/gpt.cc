#include "models/gpt.h"

#include <cmath>

#include "kernels/linear/linear.h"
#include "kernels/token_position_embedding/token_position_embedding.h"
#include "nn/dropout.h"
#include "nn/init.h"
#include "nn/layer_norm.h"
#include "nn/linear.h"
#include "nn/transformer_block.h"

namespace lockstep::models {
namespace {

constexpr double kInitStd = 0.02;

const GptConfig& Checked(const GptConfig& config) {
  Validate(config);
  return config;
}

std::vector<std::shared_ptr<Layer>> Blocks(const GptConfig& config) {
  nn::TransformerBlockOptions options{.n_embd = config.n_embd,
                                      .n_head = config.n_head,
                                      .bias = config.bias,
                                      .dropout = config.dropout,
                                      .init_std = kInitStd};
  // 2 * n_layer branches add up in the residual stream.
  options.residual_std = kInitStd / std::sqrt(2.0 * static_cast<double>(config.n_layer));
  std::vector<std::shared_ptr<Layer>> blocks;
  for (int64_t i = 0; i < config.n_layer; ++i) {
    blocks.push_back(std::make_shared<nn::TransformerBlock>(options));
  }
  return blocks;
}

}  // namespace

void Validate(const GptConfig& c) {
  const auto positive = [](const char* name, int64_t value) {
    LS_CHECK(value > 0, "the model's ", name, " must be positive, got ", value);
  };
  positive("vocab_size", c.vocab_size);
  positive("block_size", c.block_size);
  positive("n_layer", c.n_layer);
  positive("n_head", c.n_head);
  positive("n_embd", c.n_embd);
  LS_CHECK(c.n_embd % c.n_head == 0, "the model's n_embd = ", c.n_embd,
           " is not divisible by n_head = ", c.n_head);
  LS_CHECK(c.dropout >= 0 && c.dropout < 1, "the model's dropout must be in [0, 1), got ",
           c.dropout);
}

Gpt::Gpt(const GptConfig& config)
    : config_(Checked(config)),
      wte_(this, "wte",
           std::make_shared<nn::Embedding>(config.vocab_size, config.n_embd,
                                           nn::Normal(0, kInitStd))),
      wpe_(this, "wpe",
           std::make_shared<nn::Embedding>(config.block_size, config.n_embd,
                                           nn::Normal(0, kInitStd))),
      drop_(this, "drop", std::make_shared<nn::Dropout>(config.dropout)),
      h_(this, "h", Blocks(config)),
      ln_f_(this, "ln_f", std::make_shared<nn::LayerNorm>(config.n_embd, config.bias)) {
  if (!config.tie_embeddings) {
    lm_head_ = std::make_unique<Child<Layer>>(
        this, "lm_head",
        std::make_shared<nn::Linear>(
            config.n_embd, config.vocab_size,
            nn::LinearOptions{.bias = false, .weight_init = nn::Normal(0, kInitStd)}));
  }
}

double Gpt::FlopsPerToken(int64_t t) const {
  return 6.0 * static_cast<double>(NumParameters()) +
         6.0 * static_cast<double>(config_.n_layer * config_.n_embd * t);
}

Tensor Gpt::Forward(const Tensor& ids) {
  LS_CHECK(ids.defined() && ids.ndim() == 2, "a GPT takes ids of shape [B, T], got ",
           ids.Describe());
  LS_CHECK(ids.dim(1) <= config_.block_size, "a sequence of ", ids.dim(1),
           " tokens is longer than the model's block_size = ", config_.block_size);
  Tensor x = drop_(ops::TokenPositionEmbedding(ids, *wte_->weight(), *wpe_->weight()));
  for (int64_t i = 0; i < h_.size(); ++i) x = h_[i](x);
  x = ln_f_(x);
  return lm_head_ ? (*lm_head_)(x) : ops::Linear(x, *wte_->weight());
}

}  // namespace lockstep::models
