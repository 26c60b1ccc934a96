#include "nn/transformer_block.h"

#include "kernels/residual/residual.h"
#include "nn/causal_self_attention.h"
#include "nn/layer_norm.h"
#include "nn/mlp.h"

namespace lockstep::nn {

TransformerBlock::TransformerBlock(const TransformerBlockOptions& options)
    : ln_1_(this, "ln_1", std::make_shared<LayerNorm>(options.n_embd, options.bias)),
      attn_(this, "attn",
            std::make_shared<CausalSelfAttention>(
                options.n_embd, options.n_head,
                CausalSelfAttentionOptions{.bias = options.bias,
                                           .dropout = options.dropout,
                                           .init_std = options.init_std,
                                           .residual_std = options.residual_std})),
      ln_2_(this, "ln_2", std::make_shared<LayerNorm>(options.n_embd, options.bias)),
      mlp_(this, "mlp",
           std::make_shared<Mlp>(options.n_embd, 4 * options.n_embd,
                                 MlpOptions{.bias = options.bias,
                                            .dropout = options.dropout,
                                            .init_std = options.init_std,
                                            .residual_std = options.residual_std})) {}

Tensor TransformerBlock::Forward(const Tensor& x) {
  const Tensor middle = ops::Residual(x, attn_(ln_1_(x)));
  return ops::Residual(middle, mlp_(ln_2_(middle)));
}

}  // namespace lockstep::nn
