#include "models/gpt/peft/merged_weights.h"

#include "models/gpt/peft/layer_names.h"

namespace lockstep::models {

WeightSource MergedWeights(const GptConfig& config, const PeftAdapter& adapter, WeightSource base,
                           DType dtype, std::function<void(const nn::LoraMergeLoss&)> lost) {
  Gpt shape(config);
  adapter.AddTo(shape);  // throws if it does not fit
  return [=](const std::string& name, const Parameter& p) {
    const Tensor whole = Tensor::Empty(p.logical_shape(), DType::kF32);
    whole.CopyFrom(base(name, p));
    for (const auto& [rows, module, kind] : ModuleRowsOf(config, name, p)) {
      const Tensor saved = adapter.Saved(module, kind);
      const auto [a, b] = adapter.Matrices(module);
      if (!saved.defined() && !a.defined()) continue;
      const Tensor part = whole.Slice(0, rows.begin, rows.end);
      if (saved.defined()) {
        (rows.transposed ? part.Transpose(0, 1) : part).CopyFrom(saved);
      } else if (kind == "weight") {
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
