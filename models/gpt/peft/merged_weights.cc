#include "models/gpt/peft/merged_weights.h"

#include "models/gpt/peft/layer_names.h"

namespace lockstep::models {

WeightSource MergedWeights(const GptConfig& config, const PeftAdapter& adapter, WeightSource base,
                           DType dtype, std::function<void(const nn::LoraMergeLoss&)> lost) {
  Gpt shape(config);
  adapter.AddTo(shape);  // throws if it does not fit
  return [=](const std::string& name, const Parameter& p) {
    const Tensor whole = Tensor::Empty(p.logical_shape(), DType::kF32);
    whole.CopyFrom(base(name, p).Detach());
    for (const auto& [rows, module, kind] : ModuleRowsOf(config, name, p)) {
      const Tensor saved = adapter.Saved(module, kind);
      const auto [a, b] = adapter.Matrices(module);
      if (!saved.defined() && !a.defined()) continue;
      const Tensor stored = rows.Of(whole);
      if (saved.defined()) {
        stored.CopyFrom(saved);
      } else if (kind == "weight") {
        const Tensor part = rows.transposed ? stored.Transpose(0, 1) : stored;
        nn::LoraMergeLoss loss{.path = module};
        part.CopyFrom(
            nn::MergedRows(part, a, b, adapter.config().ScaleOf(module), dtype, &loss.lost));
        if (lost) lost(loss);
      }
    }
    return whole.To(dtype);
  };
}

}  // namespace lockstep::models
