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
  for (HfRows rows : HfRowsOf(config, name, p)) {
    const std::string kind = rows.name.substr(rows.name.rfind('.') + 1);
    if (p.logical_shape().ndim() == 3 && rows.expert < 0) {  // stacked
      const size_t at = rows.name.rfind('.', rows.name.rfind('.') - 1);
      rows.end = p.logical_shape()[1];
      for (rows.expert = 0; rows.expert < p.logical_shape()[0]; ++rows.expert) {
        const std::string own =
            StrCat(rows.name.substr(0, at), ".", rows.expert, rows.name.substr(at));
        out.push_back({rows, ModuleOf(config, own), kind});
      }
    } else {
      out.push_back({rows, ModuleOf(config, rows.name), kind});
    }
  }
  return out;
}

std::vector<AdaptableLayer> AdaptableLayers(const Gpt& model) {
  std::vector<AdaptableLayer> out;
  const auto add = [&](const std::string& path, const Parameter& weight) {
    const std::vector<ModuleRows> parts = ModuleRowsOf(model.config(), path + ".weight", weight);
    const bool sliced = parts.size() > 1 && parts[0].rows.expert == parts[1].rows.expert;
    for (const auto& [rows, module, kind] : parts) {
      if (out.empty() || out.back().path != path || out.back().expert != rows.expert) {
        out.push_back(
            {.path = path, .in_features = weight.logical_shape()[-1], .expert = rows.expert});
      }
      const std::string slice = sliced ? module.substr(module.rfind('.') + 1) : "";
      out.back().parts.push_back({module, slice, rows.end - rows.begin});
    }
  };
  for (const auto& [name, p] : StoredParameters(model)) {
    if (IsLinearMap(name, *p) || p->logical_shape().ndim() == 3)
      add(name.substr(0, name.rfind('.')), *p);
  }
  for (const auto& [path, layer] : nn::QuantizedLayers(model)) add(path, layer->weight());
  return out;
}

Tensor AdaptableLayer::Of(const Tensor& all) const {
  return expert < 0 ? all : all.Slice(0, expert, expert + 1).Squeeze(0);
}

std::vector<nn::LoraTarget> JoinExperts(const std::vector<AdaptableLayer>& layers,
                                        std::vector<nn::LoraTarget> targets,
                                        const std::function<void(const std::string&)>& fail) {
  std::vector<nn::LoraTarget> out;
  const nn::LoraTarget* first = nullptr;  // expert 0's
  for (size_t l = 0; l < layers.size(); ++l) {
    const std::vector<nn::LoraSlice>& slices = targets[l].slices;
    if (layers[l].expert <= 0) first = &targets[l];
    for (size_t i = 0; i < slices.size(); ++i) {
      const nn::LoraSlice& of_first = first->slices[i];
      if (slices[i].rank == of_first.rank && slices[i].scale == of_first.scale) continue;
      const auto say = [&](int64_t rank, double scale) {
        return rank == 0 ? "none" : StrCat("one of rank ", rank, " and scale ", scale);
      };
      fail(StrCat("all experts of a layer have adapters of the same rank and scale, or none: ",
                  layers[l].parts[i].module, " has ", say(slices[i].rank, slices[i].scale),
                  ", and expert 0 has ", say(of_first.rank, of_first.scale)));
    }
    const bool adapted = std::ranges::any_of(slices, [](const auto& s) { return s.rank > 0; });
    if (adapted && layers[l].expert <= 0) out.push_back(targets[l]);
  }
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
