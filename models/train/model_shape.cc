#include "models/train/model_shape.h"

#include <cmath>

namespace lockstep::models {
namespace {

nn::MixtureOptions ToMixture(const ModelOptions& m) {
  if (m.n_expert == 0) return {};
  const nn::MlpActivation activation = ParseActivation(m.activation);
  const int64_t mlp = m.n_inner > 0 ? m.n_inner : DefaultInner(m.n_embd, activation);
  nn::MixtureOptions mixture{.n_expert = m.n_expert,
                             .n_expert_used = m.n_expert_used,
                             .n_inner = m.n_expert_inner > 0 ? m.n_expert_inner : mlp,
                             .shared_gate = m.shared_gate,
                             .router = ParseRouter(m.router)};
  mixture.n_shared = m.n_shared_expert * mixture.n_inner;
  mixture.router.scale = m.router_scale;
  SetCoefficients(m, &mixture);
  return mixture;
}

// The fields of a shape that have options of the same value.
template <class Options, class Shape, class F>
void ForEachEqual(Options& m, Shape& shape, const F& f) {
  f(m.n_layer, shape.n_layer);
  f(m.n_head, shape.n_head);
  f(m.n_embd, shape.n_embd);
  f(m.bias, shape.bias);
  f(m.tie_embeddings, shape.tie_embeddings);
  f(m.n_kv_head, shape.n_kv_head);
  f(m.head_dim, shape.head_dim);
  f(m.qkv_bias, shape.qkv_bias);
  f(m.value_embed, shape.value_embed);
  f(m.attn_scale, shape.attn_scale);
  f(m.attn_softcap, shape.attn_softcap);
  f(m.window, shape.window);
  f(m.window_pattern, shape.window_pattern);
  f(m.n_inner, shape.n_inner);
  f(m.norm_eps, shape.norm_eps);
  f(m.norm_offset, shape.norm_offset);
  f(m.norm_weight, shape.norm_weight);
  f(m.rope_theta, shape.rope.theta);
  f(m.rope_factor, shape.rope.factor);
  f(m.rope_low, shape.rope.low);
  f(m.rope_high, shape.rope.high);
  f(m.rope_original_length, shape.rope.original_length);
  f(m.rope_reverse, shape.rope.reverse);
  f(m.rope_local_theta, shape.rope_local_theta);
  f(m.rope_skip, shape.rope_skip);
  f(m.embed_scale, shape.embed_scale);
  f(m.embed_norm, shape.embed_norm);
  f(m.embed_mix, shape.embed_mix);
  f(m.logit_softcap, shape.logit_softcap);
}

}  // namespace

void SetCoefficients(const ModelOptions& m, nn::MixtureOptions* mixture) {
  const bool sigmoid = mixture->router.score == RouterScore::kSigmoid;
  mixture->balance_loss = sigmoid ? 0 : m.balance_loss;
  mixture->z_loss = m.z_loss;
  mixture->bias_rate = sigmoid ? m.bias_rate : 0;
}

GptConfig ToGptConfig(const ModelOptions& m) {
  GptConfig shape{
      .vocab_size = m.vocab_size,
      .block_size = m.block_size,
      .dropout = m.dropout,
      .qk_norm = ParseQkNorm(m.qk_norm),
      .norm = ParseNorm(m.norm),
      .norm_place = ParseNormPlace(m.norm_place),
      .activation = ParseActivation(m.activation),
      .position = ParsePosition(m.position),
      .init_std = m.init_std > 0 ? m.init_std : 1 / std::sqrt(static_cast<double>(m.n_embd)),
      .init_zero = m.init_zero,
      .mixture = ToMixture(m),
      .n_dense = m.n_dense};
  shape.rope.scaling = ParseRopeScaling(m.rope_scaling);
  ForEachEqual(m, shape, [](const auto& option, auto& field) { field = option; });
  return shape;
}

ModelOptions ToModelOptions(const GptConfig& shape, const ModelOptions& model) {
  ModelOptions m = model;
  ForEachEqual(m, shape, [](auto& option, const auto& field) { option = field; });
  if (m.vocab_size != 0) m.vocab_size = shape.vocab_size;
  m.qk_norm = Name(shape.qk_norm);
  m.norm = Name(shape.norm);
  m.norm_place = Name(shape.norm_place);
  m.activation = Name(shape.activation);
  m.position = Name(shape.position);
  m.rope_scaling = Name(shape.rope.scaling);
  const nn::MixtureOptions& mixture = shape.mixture;
  m.n_expert = mixture.n_expert;
  if (mixture.n_expert == 0) return m;
  m.n_expert_used = mixture.n_expert_used;
  m.n_expert_inner = mixture.n_inner;
  m.n_shared_expert = mixture.n_shared / mixture.n_inner;  // in units of an expert
  m.shared_gate = mixture.shared_gate;
  m.n_dense = shape.n_dense;
  m.router = RouterName(mixture.router);
  m.router_scale = mixture.router.scale;
  return m;
}

}  // namespace lockstep::models
