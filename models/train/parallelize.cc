#include "models/train/parallelize.h"

#include "dist/context/parallelize_context.h"

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
                           c_fc,
                           {"h.*.mlp.c_proj", kRow},
                           {"ln_f", kSequence},
                           {"lm_head", kVocabulary}};
  return plan;
}

void Parallelize(Gpt& model, const dist::TensorRanksPtr& ranks) {
  if (ranks->parts() > 1) dist::Parallelize(model, ranks, GptTensorPlan(model.config()));
}

bool SumsContextWithData(const RunConfig& config) {
  return config.parallel.cp > 1 && config.dist.reduction != "ordered";
}

dist::ContextRanksPtr ContextRanksOf(const RunConfig& config, dist::ProcessGroup* group) {
  const int64_t pairs = config.parallel.context_pairs();
  if (pairs == 1) return nullptr;
  return std::make_shared<dist::ContextRanks>(group, pairs, SumsContextWithData(config));
}

void ShareSequences(Gpt& model, const dist::ContextRanksPtr& ranks) {
  if (ranks) dist::ParallelizeContext(model, ranks);
}

}  // namespace lockstep::models
