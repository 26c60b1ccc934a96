// The last part of a GPT.
#pragma once

#include <memory>

#include "models/gpt/gpt_config.h"
#include "nn/lm_head.h"
#include "nn/stream/residual_norm.h"

namespace lockstep::models {

using GptHeadLayer = ModuleOf<Tensor(nn::ResidualStream, const Tensor& targets)>;

// lm_head(ln_f(stream), targets): the logits [B, T, V], or, where targets are defined, their loss;
// see nn::LmHead. In an nn::KvCacheScope the logits are those of the last token only: [B, 1, V].
// Children: ln_f (a ResidualNormLayer) and lm_head (an LmHeadLayer).
class GptHead : public GptHeadLayer {
 public:
  // `tied`: the weight that lm_head shares with the token embedding; null: it has its own.
  GptHead(const GptConfig& config, const std::shared_ptr<Parameter>& tied);

 protected:
  Tensor Forward(nn::ResidualStream stream, const Tensor& targets) override;

 private:
  Child<nn::ResidualNormLayer> ln_f_;
  Child<nn::LmHeadLayer> lm_head_;
};

}  // namespace lockstep::models
