#include "nn/transformer_block.h"

#include "nn/attention/causal_self_attention.h"
#include "nn/mixture/mixture_of_experts.h"
#include "nn/mlp.h"
#include "nn/recompute.h"

namespace lockstep::nn {
namespace {

std::shared_ptr<ResidualNorm> Norm(const TransformerOptions& options) {
  return std::make_shared<ResidualNorm>(
      options.n_embd,
      NormOptions{.kind = options.norm, .bias = options.bias, .eps = options.norm_eps});
}

std::shared_ptr<BranchLayer> MakeMlp(const TransformerOptions& options) {
  if (options.mixture.n_expert > 0) return std::make_shared<MixtureOfExperts>(options);
  return std::make_shared<Mlp>(options);
}

}  // namespace

TransformerBlock::TransformerBlock(const TransformerOptions& options)
    : ln_1_(this, "ln_1", Norm(options)),
      attn_(this, "attn", std::make_shared<CausalSelfAttention>(options)),
      ln_2_(this, "ln_2", Norm(options)),
      mlp_(this, "mlp", MakeMlp(options)) {}

ResidualStream TransformerBlock::Forward(ResidualStream stream) {
  const auto [after_input, attn_in] = FromSum(this, [&] { return ln_1_(stream); });
  const auto [after_attn, mlp_in] = ln_2_(ResidualStream(after_input, attn_(attn_in)));
  return {after_attn, mlp_(mlp_in)};
}

}  // namespace lockstep::nn
