#include "models/gpt/gpt.h"
#include "models/options/config.h"
#include "models/plan/step_time.h"
#include "models/train/run_setup.h"
#include "nn/lora/quantized_linear.h"

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
  const Gpt gpt(setup.model);
  m.flops_per_token = gpt.FlopsPerToken(setup.sample_tokens());
  // Of the scores, and of what they weigh, forward and backward.
  const double of_attention = m.flops_per_token - gpt.FlopsPerToken(0);
  m.attended = of_attention / (12 * m.queries * m.layers);
  for (const auto& [name, p] : gpt.NamedParameters()) {
    if (nn::IsQuantizedWeight(name)) continue;
    const double n = real(p->logical_shape().numel());
    if (!name.starts_with("h.")) {
      m.end_parameters += n;
    } else if (m.experts > 0 && name.find(".experts.") != std::string::npos) {
      m.expert_parameters += n / m.layers;
    } else {
      m.block_parameters += n / m.layers;
    }
  }
  return m;
}

}  // namespace lockstep::models
