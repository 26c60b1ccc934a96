#include "models/train/parallelize.h"

namespace lockstep::models {

dist::TensorPlan GptTensorPlan(const GptConfig& c) {
  using enum dist::TensorStyle;
  const int64_t head = c.n_embd / c.n_head;
  const int64_t keys = head * (c.n_kv_head > 0 ? c.n_kv_head : c.n_head);
  const int64_t inner = c.n_inner > 0 ? c.n_inner : 4 * c.n_embd;
  dist::TensorRule c_fc{"h.*.mlp.c_fc", kColumn};
  if (c.activation == nn::MlpActivation::kSwiGlu) c_fc.segments = {inner, inner};
  dist::TensorPlan plan = {{"wte", kVocabulary},
                           {"drop", kSequence},
                           {"h.*.ln_[12]", kSequence},
                           {"h.*.attn", kHeads},
                           {"h.*.attn.c_attn", kColumn, {c.n_embd, keys, keys}},
                           {"h.*.attn.c_proj", kRow},
                           {"ln_f", kSequence},
                           {"lm_head", kVocabulary}};
  const bool mixture = c.mixture.n_expert > 0;
  if (mixture) plan.push_back({"h.*.mlp", kExperts});
  if (!mixture || c.n_dense > 0) {
    plan.push_back(c_fc);
    plan.push_back({"h.*.mlp.c_proj", kRow});
  }
  return plan;
}

void Parallelize(Gpt& model, const dist::TensorRanksPtr& ranks) {
  if (ranks->parts() > 1) dist::Parallelize(model, ranks, GptTensorPlan(model.config()));
}

}  // namespace lockstep::models
