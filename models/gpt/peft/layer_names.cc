#include "models/gpt/peft/layer_names.h"

#include <algorithm>

#include "nn/lora/quantized_linear.h"

namespace lockstep::models {
namespace {

// For a model with a head; Llama's names of tensors have the "model." already.
std::string ModuleOf(const GptConfig& config, const std::string& tensor) {
  const std::string module = tensor.substr(0, tensor.rfind('.'));
  const bool bare = module != "lm_head" && HfModelType(config) == "gpt2";
  return (bare ? "transformer." : "") + module;
}

}  // namespace

std::vector<ModuleRows> ModuleRowsOf(const GptConfig& config, const std::string& name,
                                     const Parameter& p) {
  std::vector<ModuleRows> out;
  for (const HfRows& rows : HfRowsOf(config, name, p)) {
    out.push_back({rows, ModuleOf(config, rows.name), rows.name.substr(rows.name.rfind('.') + 1)});
  }
  return out;
}

std::vector<AdaptableLayer> AdaptableLayers(const Gpt& model) {
  std::vector<AdaptableLayer> out;
  const auto add = [&](const std::string& path, const Parameter& weight) {
    AdaptableLayer layer{.path = path, .in_features = weight.logical_shape()[1]};
    const std::vector<ModuleRows> parts = ModuleRowsOf(model.config(), path + ".weight", weight);
    for (const auto& [rows, module, kind] : parts) {
      const std::string slice = parts.size() > 1 ? module.substr(module.rfind('.') + 1) : "";
      layer.parts.push_back({module, slice, rows.end - rows.begin});
    }
    out.push_back(std::move(layer));
  };
  for (const auto& [name, p] : StoredParameters(model)) {
    if (IsLinearMap(name, *p)) add(name.substr(0, name.rfind('.')), *p);
  }
  for (const auto& [path, layer] : nn::QuantizedLayers(model)) add(path, layer->weight());
  return out;
}

std::string AdaptableNames(const std::vector<AdaptableLayer>& layers) {
  std::vector<std::string> known;
  std::string list;
  for (const AdaptableLayer& layer : layers) {
    for (const AdaptableLayer::Part& part : layer.parts) {
      const std::string last = part.module.substr(part.module.rfind('.') + 1);
      if (std::ranges::find(known, last) != known.end()) continue;
      known.push_back(last);
      list += (list.empty() ? "" : ", ") + last;
    }
  }
  return list;
}

std::string WithoutModel(const std::string& module) {
  for (const std::string name : {"transformer.", "model."}) {
    if (module.starts_with(name)) return module.substr(name.size());
  }
  return module;
}

}  // namespace lockstep::models
