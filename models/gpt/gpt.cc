#include "models/gpt/gpt.h"

#include <cmath>

#include "models/gpt/lora_targets.h"
#include "models/gpt/peft/adapter.h"
#include "models/gpt/quantize_base.h"
#include "nn/lora/add_lora.h"
#include "nn/lora/quantized_linear.h"
#include "nn/offload.h"
#include "nn/offload_weights.h"
#include "nn/recompute.h"
#include "nn/tokens.h"
#include "nn/transformer_block.h"

namespace lockstep::models {
namespace {

GptConfig Checked(const GptConfig& config) {
  Validate(config);
  return Resolved(config);
}

std::shared_ptr<nn::Block> Recomputed(const std::shared_ptr<nn::TransformerBlock>& block,
                                      const RecomputeChoice& choice) {
  using Part = RecomputeChoice::Part;
  const nn::RecomputeOptions whole{.stops_early = true};
  if (choice.part == Part::kBlock) return nn::Recompute(block, whole);
  if (choice.part == Part::kOps) return nn::Recompute(block, {.ops = choice.ops});
  if (choice.part == Part::kAttention) nn::RecomputeChild(block->attn(), whole);
  if (choice.part == Part::kMlp) nn::RecomputeChild(block->mlp(), whole);
  return block;
}

// Those of layers that see all tokens, and of layers with a window.
std::pair<std::shared_ptr<nn::Rotary>, std::shared_ptr<nn::Rotary>> Rotaries(const GptConfig& c) {
  if (c.position != Position::kRope) return {};
  const auto global = std::make_shared<nn::Rotary>(c.head_dim, c.rope);
  if (c.rope_local_theta == 0) return {global, global};
  return {global,
          std::make_shared<nn::Rotary>(
              c.head_dim, RotaryOptions{.theta = c.rope_local_theta, .reverse = c.rope.reverse})};
}

std::vector<std::shared_ptr<nn::Block>> Blocks(const GptConfig& config) {
  nn::TransformerOptions options{
      .n_embd = config.n_embd,
      .n_head = config.n_head,
      .bias = config.bias,
      .dropout = config.dropout,
      .init_std = config.init_std,
      // 2 * n_layer branches add up in the residual stream.
      .residual_std = config.init_zero
                          ? 0
                          : config.init_std / std::sqrt(2.0 * static_cast<double>(config.n_layer)),
      .n_kv_head = config.n_kv_head,
      .head_dim = config.head_dim,
      .qkv_bias = config.qkv_bias,
      .qk_norm = config.qk_norm,
      .attn_scale = config.attn_scale,
      .attn_softcap = config.attn_softcap,
      .n_inner = config.n_inner,
      .norm = config.norm,
      .norm_eps = config.norm_eps,
      .norm_offset = static_cast<double>(config.norm_offset),
      .norm_weight = config.norm_weight,
      .norm_place = config.norm_place,
      .embed_mix = config.embed_mix,
      .activation = config.activation};
  const auto [rotary, local_rotary] = Rotaries(config);
  std::vector<std::shared_ptr<nn::Block>> blocks;
  const RecomputeChoice& recompute = config.recompute;
  const auto offloader = std::make_shared<Offloader>();
  for (int64_t i = 0; i < config.n_layer; ++i) {
    options.window = HasWindow(config, i) ? config.window : 0;
    options.rotary = !HasRope(config, i) ? nullptr : options.window > 0 ? local_rotary : rotary;
    options.value_tokens = HasValueEmbed(config, i) ? config.vocab_size : 0;
    options.mixture = i < config.n_dense ? nn::MixtureOptions() : config.mixture;
    const auto block = std::make_shared<nn::TransformerBlock>(options);
    const bool chosen = recompute.layers < 0 || i < recompute.layers;
    blocks.push_back(chosen ? Recomputed(block, recompute) : block);
    if (config.offload.activations) blocks.back() = nn::Offload(blocks.back(), offloader);
  }
  if (config.offload.weights) nn::OffloadWeights(blocks);
  return blocks;
}

// How many of the parameter's elements a token meets: of experts, which are stacked, those of some.
int64_t NumActive(const nn::MixtureOptions& mixture, const Parameter& p) {
  const int64_t all = p.logical_shape().numel();
  return p.logical_shape().ndim() < 3 ? all : all / mixture.n_expert * mixture.n_expert_used;
}

}  // namespace

Gpt::Gpt(const GptConfig& config)
    : Gpt(Checked(config), std::make_shared<GptEmbedding>(Checked(config))) {}

Gpt::Gpt(const GptConfig& resolved, const std::shared_ptr<GptEmbedding>& embedding)
    : config_(resolved),
      embedding_(this, "", embedding),
      h_(this, "h", Blocks(config_)),
      head_(this, "",
            std::make_shared<GptHead>(
                config_, config_.tie_embeddings ? embedding->wte().weight() : nullptr)) {
  if (!config_.lora.init_from.empty()) {
    PeftAdapter::Open(config_.lora.init_from, config_).AddTo(*this, config_.lora.dropout);
  } else if (config_.lora.rank > 0) {
    nn::AddLora(*this, LoraTargets(*this), ToNn(config_.lora));
  }
  if (config_.lora.quantizes()) QuantizeBase(*this, config_.lora.base == "nf4");
  TrainSavedModules(*this, config_.lora.modules_to_save);
}

int64_t Gpt::NumWeights() const { return NumParameters() + nn::NumQuantizedWeights(*this); }

int64_t Gpt::NumActiveParameters() const {
  int64_t active = NumWeights();
  for (const auto& p : Parameters()) {
    active -= p->logical_shape().numel() - NumActive(config_.mixture, *p);
  }
  return active;
}

double Gpt::FlopsPerToken(int64_t t) const {
  const auto all = static_cast<double>(t);
  double keys = 0;  // that a query sees, twice the mean, in all layers
  for (int64_t i = 0; i < config_.n_layer; ++i) {
    const auto window = static_cast<double>(config_.window);
    keys += HasWindow(config_, i) && window < all ? window * (2 - window / all) : all;
  }
  int64_t frozen = nn::NumQuantizedWeights(
      *this);  // whose gradient, a third of a weight's FLOPs, is not computed
  int64_t active = NumActiveParameters();
  for (const auto& [name, p] : NamedParameters()) {
    if (IsValueEmbed(name)) {
      active -= p->logical_shape().numel();
    } else if (!p->trainable() && !nn::IsQuantizedWeight(name)) {
      frozen += NumActive(config_.mixture, *p);
    }
  }
  return 6.0 * static_cast<double>(active) - 2.0 * static_cast<double>(frozen) +
         6.0 * static_cast<double>(config_.n_head * config_.head_dim) * keys;
}

nn::ResidualStream Gpt::Embedded(const Tensor& ids) {
  const Tensor x = embedding_(ids);
  return config_.embed_mix ? nn::StartStream(x) : x;
}

Tensor Gpt::Forward(const Tensor& ids, const Tensor& targets) {
  if (ranks_.forward) return ranks_.forward(ids, targets);
  return head_(Stream(ids), targets);
}

nn::ResidualStream Gpt::Stream(const Tensor& ids) {
  if (ranks_.stream) return ranks_.stream(ids);
  const nn::TokenScope tokens(ids);
  nn::ResidualStream stream = Embedded(ids);
  for (int64_t i = 0; i < h_.size(); ++i) stream = h_[i](std::move(stream));
  return stream;
}

bool IsLinearMap(std::string_view name, const Parameter& p) {
  return p.logical_shape().ndim() == 2 && name.starts_with("h.") && !IsValueEmbed(name) &&
         !name.ends_with(".router.weight") && !name.ends_with(".shared_gate.weight");
}

}  // namespace lockstep::models
