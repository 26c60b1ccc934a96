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

}  // namespace lockstep::models
