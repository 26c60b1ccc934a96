#include "models/gpt/gpt.h"
#include "models/options/config.h"
#include "models/plan/step_time.h"
#include "models/train/run_setup.h"

namespace lockstep::models {

PlannedModel PlannedModel::Of(const RunSetup& setup) {
  const auto real = [](int64_t n) { return static_cast<double>(n); };
  const GptConfig c = Resolved(setup.model);
  PlannedModel m{
      .layers = real(c.n_layer),
      .embd = real(c.n_embd),
      .queries = real(c.n_head * c.head_dim),
      .keys = real(c.key_heads() * c.head_dim),
      .inner = real(c.n_inner),
      .vocabulary = real(c.vocab_size),
      .gated = nn::IsGated(c.activation),
      .tied = c.tie_embeddings,
      .experts = real(c.mixture.n_expert),
      .experts_used = real(c.mixture.n_expert_used),
      .expert_inner = real(c.mixture.n_inner),
      .shared_inner = real(c.mixture.n_shared),
      .window = real(setup.sample_tokens()),
      .weight_bytes = static_cast<int>(SizeOf(WeightDType(setup.config.train.precision)))};
  for (int64_t i = 0; i < c.n_layer; ++i) {
    const double window = real(c.window);
    m.attended +=
        HasWindow(c, i) && window < m.window ? window * (1 - window / m.window / 2) : m.window / 2;
  }
  m.attended /= m.layers;
  const Gpt gpt(setup.model);
  for (const auto& [name, p] : gpt.NamedParameters()) {
    const double n = real(p->logical_shape().numel());
    if (!name.starts_with("h.")) {
      m.end_parameters += n;
    } else if (m.experts > 0 && name.find(".experts.") != std::string::npos) {
      m.expert_parameters += n / m.layers;
    } else {
      m.block_parameters += n / m.layers;
    }
  }
  m.flops_per_token = gpt.FlopsPerToken(setup.sample_tokens());
  return m;
}

}  // namespace lockstep::models
