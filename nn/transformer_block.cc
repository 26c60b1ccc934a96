#include "nn/transformer_block.h"

#include <tuple>

#include "nn/attention/causal_self_attention.h"
#include "nn/mixture/mixture_of_experts.h"
#include "nn/mlp.h"
#include "nn/recompute.h"
#include "nn/stream/stream_mix.h"

namespace lockstep::nn {
namespace {

NormOptions NormOf(const TransformerOptions& o) {
  return {.kind = o.norm,
          .bias = o.bias,
          .weight = o.norm_weight,
          .eps = o.norm_eps,
          .offset = o.norm_offset};
}

std::unique_ptr<Child<ResidualNormLayer>> Mix(Module* owner, const TransformerOptions& o) {
  if (!o.embed_mix) return nullptr;
  return std::make_unique<Child<ResidualNormLayer>>(owner, "mix", std::make_shared<StreamMix>());
}

std::unique_ptr<Child<ResidualNormLayer>> NormBefore(Module* owner, const char* name,
                                                     const TransformerOptions& o) {
  if (o.norm_place == NormPlace::kPost) return nullptr;
  return std::make_unique<Child<ResidualNormLayer>>(
      owner, name, std::make_shared<ResidualNorm>(o.n_embd, NormOf(o)));
}

std::unique_ptr<Child<BranchLayer>> NormAfter(Module* owner, const char* name,
                                              const TransformerOptions& o) {
  if (o.norm_place == NormPlace::kPre) return nullptr;
  return std::make_unique<Child<BranchLayer>>(owner, name,
                                              std::make_shared<BranchNorm>(o.n_embd, NormOf(o)));
}

// The sum of a stream, and what a branch takes of it.
std::pair<Tensor, Tensor> Input(const std::unique_ptr<Child<ResidualNormLayer>>& norm,
                                const ResidualStream& stream) {
  if (norm) return (*norm)(stream);
  const Tensor sum = Complete(stream);
  return {sum, sum};
}

ops::Branch Output(const std::unique_ptr<Child<BranchLayer>>& norm, ops::Branch branch) {
  return norm ? (*norm)(std::move(branch)) : branch;
}

std::shared_ptr<BranchLayer> MakeMlp(const TransformerOptions& options) {
  if (options.mixture.n_expert > 0) return std::make_shared<MixtureOfExperts>(options);
  return std::make_shared<Mlp>(options);
}

}  // namespace

TransformerBlock::TransformerBlock(const TransformerOptions& options)
    : mix_(Mix(this, options)),
      ln_1_(NormBefore(this, "ln_1", options)),
      attn_(this, "attn", std::make_shared<CausalSelfAttention>(options)),
      ln_1_out_(NormAfter(this, "ln_1_out", options)),
      ln_2_(NormBefore(this, "ln_2", options)),
      mlp_(this, "mlp", MakeMlp(options)),
      ln_2_out_(NormAfter(this, "ln_2_out", options)) {}

ResidualStream TransformerBlock::Forward(ResidualStream stream) {
  auto [after_input, attn_in] =
      FromSum(this, stream, [&] { return mix_ ? (*mix_)(stream) : Input(ln_1_, stream); });
  if (mix_) std::tie(after_input, attn_in) = Input(ln_1_, attn_in);
  const auto [after_attn, mlp_in] =
      Input(ln_2_, ResidualStream(after_input, Output(ln_1_out_, attn_(attn_in))));
  return {after_attn, Output(ln_2_out_, mlp_(mlp_in)), stream.x0};
}

}  // namespace lockstep::nn
