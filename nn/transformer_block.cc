#include "nn/transformer_block.h"

#include "nn/causal_self_attention.h"

namespace lockstep::nn {
namespace {

NormOptions Norm(const TransformerBlockOptions& options) {
  return {.kind = options.norm, .bias = options.bias, .eps = options.norm_eps};
}

}  // namespace

TransformerBlock::TransformerBlock(const TransformerBlockOptions& options)
    : ln_1_(this, "ln_1", std::make_shared<ResidualNorm>(options.n_embd, Norm(options))),
      attn_(this, "attn",
            std::make_shared<CausalSelfAttention>(
                options.n_embd, options.n_head,
                CausalSelfAttentionOptions{.bias = options.bias,
                                           .dropout = options.dropout,
                                           .init_std = options.init_std,
                                           .residual_std = options.residual_std,
                                           .n_kv_head = options.n_kv_head,
                                           .rotary = options.rotary})),
      ln_2_(this, "ln_2", std::make_shared<ResidualNorm>(options.n_embd, Norm(options))),
      mlp_(this, "mlp",
           std::make_shared<Mlp>(options.n_embd,
                                 options.n_inner > 0 ? options.n_inner : 4 * options.n_embd,
                                 MlpOptions{.bias = options.bias,
                                            .activation = options.activation,
                                            .dropout = options.dropout,
                                            .init_std = options.init_std,
                                            .residual_std = options.residual_std})) {}

ResidualStream TransformerBlock::Forward(ResidualStream stream) {
  const auto [after_input, attn_in] = ln_1_(stream);
  const auto [after_attn, mlp_in] = ln_2_(ResidualStream(after_input, attn_(attn_in)));
  return {after_attn, mlp_(mlp_in)};
}

}  // namespace lockstep::nn
