#include "nn/transformer_block.h"

#include "kernels/residual/residual.h"
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

std::pair<Tensor, Tensor> TransformerBlock::Attend(const Tensor& x, const ops::Branch& branch) {
  const auto [sum, normed] = ln_1_(x, branch);
  return ln_2_(sum, BranchOf(attn_, normed));
}

Tensor TransformerBlock::Forward(const Tensor& x) {
  const auto [middle, normed] = Attend(x, {});
  return ops::Residual(middle, mlp_(normed));
}

std::pair<Tensor, ops::Branch> TransformerBlock::Continue(const Tensor& x,
                                                          const ops::Branch& branch) {
  RunPreForward();
  const uint64_t first = NextSequence();
  const auto [middle, normed] = Attend(x, branch);
  std::pair<Tensor, ops::Branch> out{middle, BranchOf(mlp_, normed)};
  if (has_backward_hooks()) {
    const Tensor* outputs[] = {&out.first, &out.second.value};
    HookBackward(outputs, first);
  }
  RunPostForward();
  return out;
}

}  // namespace lockstep::nn
