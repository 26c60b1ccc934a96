#include "models/gpt/gpt_head.h"

#include "nn/init.h"
#include "nn/kv_cache.h"

namespace lockstep::models {
namespace {

std::shared_ptr<nn::LmHead> MakeLmHead(const GptConfig& config,
                                       const std::shared_ptr<Parameter>& tied) {
  if (tied) {
    return std::make_shared<nn::LmHead>(tied, config.loss_chunk, config.logit_softcap,
                                        config.z_loss);
  }
  return std::make_shared<nn::LmHead>(config.n_embd, config.vocab_size,
                                      nn::Normal(0, config.init_zero ? 0 : config.init_std),
                                      config.loss_chunk, config.logit_softcap, config.z_loss);
}

}  // namespace

GptHead::GptHead(const GptConfig& config, const std::shared_ptr<Parameter>& tied)
    : ln_f_(this, "ln_f",
            std::make_shared<nn::ResidualNorm>(
                config.n_embd, nn::NormOptions{.kind = config.norm,
                                               .bias = config.bias,
                                               .weight = config.norm_weight,
                                               .eps = config.norm_eps,
                                               .offset = static_cast<double>(config.norm_offset)})),
      lm_head_(this, "lm_head", MakeLmHead(config, tied)) {}

Tensor GptHead::Forward(nn::ResidualStream stream, const Tensor& targets) {
  stream.x0 = {};
  // Generation needs only the logits of the last token.
  if (nn::KvCacheScope::Current() != nullptr) {
    for (Tensor* t : {&stream.x, &stream.open.value}) {
      if (t->defined()) *t = t->Slice(1, t->dim(1) - 1, t->dim(1));
    }
  }
  return lm_head_(ln_f_(stream).second, targets);
}

}  // namespace lockstep::models
