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

}  // namespace

void SetCoefficients(const ModelOptions& m, nn::MixtureOptions* mixture) {
  const bool sigmoid = mixture->router.score == RouterScore::kSigmoid;
  mixture->balance_loss = sigmoid ? 0 : m.balance_loss;
  mixture->z_loss = m.z_loss;
  mixture->bias_rate = sigmoid ? m.bias_rate : 0;
}

GptConfig ToGptConfig(const ModelOptions& m) {
  return {.vocab_size = m.vocab_size,
          .block_size = m.block_size,
          .n_layer = m.n_layer,
          .n_head = m.n_head,
          .n_embd = m.n_embd,
          .dropout = m.dropout,
          .bias = m.bias,
          .tie_embeddings = m.tie_embeddings,
          .n_kv_head = m.n_kv_head,
          .head_dim = m.head_dim,
          .qkv_bias = m.qkv_bias,
          .qk_norm = ParseQkNorm(m.qk_norm),
          .attn_scale = m.attn_scale,
          .attn_softcap = m.attn_softcap,
          .window = m.window,
          .window_pattern = m.window_pattern,
          .n_inner = m.n_inner,
          .norm = ParseNorm(m.norm),
          .norm_eps = m.norm_eps,
          .norm_offset = m.norm_offset,
          .norm_place = ParseNormPlace(m.norm_place),
          .activation = ParseActivation(m.activation),
          .position = ParsePosition(m.position),
          .rope = {.theta = m.rope_theta,
                   .scaling = ParseRopeScaling(m.rope_scaling),
                   .factor = m.rope_factor,
                   .low = m.rope_low,
                   .high = m.rope_high,
                   .original_length = m.rope_original_length},
          .rope_local_theta = m.rope_local_theta,
          .rope_skip = m.rope_skip,
          .embed_scale = m.embed_scale,
          .logit_softcap = m.logit_softcap,
          .init_std = m.init_std > 0 ? m.init_std : 1 / std::sqrt(static_cast<double>(m.n_embd)),
          .mixture = ToMixture(m),
          .n_dense = m.n_dense};
}

ModelOptions ToModelOptions(const GptConfig& shape, const ModelOptions& model) {
  ModelOptions m = model;
  if (m.vocab_size != 0) m.vocab_size = shape.vocab_size;
  m.n_layer = shape.n_layer;
  m.n_head = shape.n_head;
  m.n_embd = shape.n_embd;
  m.bias = shape.bias;
  m.tie_embeddings = shape.tie_embeddings;
  m.n_kv_head = shape.n_kv_head;
  m.head_dim = shape.head_dim;
  m.qkv_bias = shape.qkv_bias;
  m.qk_norm = Name(shape.qk_norm);
  m.attn_scale = shape.attn_scale;
  m.attn_softcap = shape.attn_softcap;
  m.window = shape.window;
  m.window_pattern = shape.window_pattern;
  m.n_inner = shape.n_inner;
  m.norm = Name(shape.norm);
  m.norm_eps = shape.norm_eps;
  m.norm_offset = shape.norm_offset;
  m.norm_place = Name(shape.norm_place);
  m.activation = Name(shape.activation);
  m.position = Name(shape.position);
  m.rope_theta = shape.rope.theta;
  m.rope_scaling = Name(shape.rope.scaling);
  m.rope_factor = shape.rope.factor;
  m.rope_low = shape.rope.low;
  m.rope_high = shape.rope.high;
  m.rope_original_length = shape.rope.original_length;
  m.rope_local_theta = shape.rope_local_theta;
  m.rope_skip = shape.rope_skip;
  m.embed_scale = shape.embed_scale;
  m.logit_softcap = shape.logit_softcap;
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
