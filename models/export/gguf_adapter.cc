#include "models/export/gguf_adapter.h"

#include <cmath>

#include "models/gpt/gguf/gguf_names.h"
#include "models/gpt/peft/layer_names.h"

namespace lockstep::models {
namespace {

void RefuseWholeWeights(const GptConfig& c, const PeftAdapter& adapter, const Gpt& model) {
  for (const auto& [name, p] : model.NamedParameters()) {
    for (const ModuleRows& part : ModuleRowsOf(c, name, *p)) {
      if (!adapter.Saved(part.module, part.kind).defined()) continue;
      throw InputError(StrCat(adapter.folder(), ": has the whole of ", part.module,
                              " (\"modules_to_save\"), which an adapter in GGUF cannot have: merge "
                              "it into the weights, with --format=gguf"));
    }
  }
}

Tensor Times(const Tensor& x, double factor) {
  if (std::abs(factor - 1) < 1e-9) return x;
  const Tensor y = x.To(DType::kF32).Clone();
  for (float& v : std::span(y.data<float>(), static_cast<size_t>(y.numel()))) {
    v = static_cast<float>(v * factor);
  }
  return y;
}

}  // namespace

GgufModel ToGgufAdapter(const GptConfig& config, const PeftAdapter& adapter, GgufType type,
                        const std::string& name) {
  const GptConfig c = Resolved(config);
  const GgufArchitecture& architecture = GgufArchitectureOf(c);
  const Gpt model(c);
  Gpt adapted(c);
  adapter.AddTo(adapted);  // throws if it does not fit
  RefuseWholeWeights(c, adapter, model);
  GgufModel out;
  double alpha = 0;  // the first matrix', by which all scales are expressed
  for (const AdaptableLayer& layer : AdaptableLayers(model)) {
    for (const AdaptableLayer::Part& part : layer.parts) {
      const auto [a, b] = adapter.Matrices(part.module);
      if (!a.defined()) continue;
      if (layer.expert >= 0) {
        throw InputError(StrCat(adapter.folder(), ": adapts the experts of ", layer.path,
                                ", which an adapter in GGUF cannot do: merge it into the weights, "
                                "with --format=gguf"));
      }
      const auto rank = static_cast<double>(a.dim(0));
      const double own = adapter.config().ScaleOf(part.module) * rank;
      if (out.tensors.empty()) alpha = own;
      const GgufPlace place = GgufPlaceOf(architecture, c, part.module + ".weight");
      const Tensor rows = place.interleaved ? Interleaved(b, c.head_dim) : b;
      const Tensor scaled = alpha == own ? rows : Times(rows, own / alpha);
      out.tensors.push_back({place.name + ".lora_a", type, a.shape(), {[a = a] { return a; }}});
      out.tensors.push_back(
          {place.name + ".lora_b", type, b.shape(), {[scaled] { return scaled; }}});
    }
  }
  out.metadata = {{"general.architecture", std::string(architecture.name)},
                  {"general.type", std::string("adapter")},
                  {"general.name", name},
                  {"general.file_type", GgufFileType(type)},
                  {"adapter.type", std::string("lora")},
                  {"adapter.lora.alpha", static_cast<float>(alpha)}};
  return out;
}

}  // namespace lockstep::models
