// The adapter of a GGUF file, as PEFT's files have it.
#include <algorithm>
#include <cmath>
#include <set>

#include "models/gpt/gguf/gguf_names.h"
#include "models/gpt/gguf/gguf_reader.h"
#include "models/gpt/hf/hf_format.h"
#include "models/gpt/peft/layer_names.h"

namespace lockstep::models {
namespace {

// The architecture of the file, which must be the base's.
const GgufArchitecture& CheckKind(const Fields& f, const GptConfig& base) {
  if (const std::string type = f.Text("general.type", "model"); type != "adapter") {
    f.Fail("general.type", StrCat("is \"", type, "\"; that of an adapter is \"adapter\""));
  }
  if (const std::string type = f.Text("adapter.type", ""); type != "lora") {
    f.Fail("adapter.type", StrCat("is \"", type, "\"; only \"lora\" is supported"));
  }
  // Others may change what is computed, as those of activated adapters do.
  const std::set<std::string> known = {"adapter.type", "adapter.lora.alpha",
                                       "adapter.lora.task_name", "adapter.lora.prompt_prefix"};
  for (const auto& [key, value] : f.j.items()) {
    if (key.starts_with("adapter.") && !known.contains(key)) {
      f.Fail(key.c_str(), "is there; Lockstep has no such adapters");
    }
  }
  const auto all = GgufArchitectures();
  const auto own = std::ranges::find(all, HfModelType(base), &GgufArchitecture::model_type);
  const std::string named = f.Text("general.architecture", "");
  if (own == all.end() || own->name != named) {
    f.Fail("general.architecture", StrCat("is \"", named, "\", and the weights are those of ",
                                          HfTitle(base), ": the adapter belongs to another model"));
  }
  return *own;
}

// PEFT's "lora_A" or "lora_B" of a module.
StoredTensor Stored(const GgufFile& file, const GgufEntry& entry, const std::string& name,
                    const std::function<Tensor(const Tensor&)>& restored) {
  if (entry.shape.ndim() != 2) {
    throw InputError(StrCat(file.source(), ": tensor '", entry.name, "' has shape ", entry.shape,
                            ", which is no matrix"));
  }
  return {{.name = name,
           .dtype_name = std::string(SafetensorsName(GgufDType(entry.type))),
           .shape = {entry.shape.begin(), entry.shape.end()},
           .bytes = entry.bytes,
           .source = std::make_shared<const std::string>(file.source())},
          // The handle keeps the file mapped.
          [file, entry, restored] { return restored(entry.ToTensor()); }};
}

}  // namespace

GgufAdapter GgufAdapterOf(const GgufFile& file, const GptConfig& base) {
  const Fields f = file.metadata();
  const GgufArchitecture& architecture = CheckKind(f, base);
  const double alpha = f.Number("adapter.lora.alpha", 0);
  if (!std::isfinite(alpha)) f.Fail("adapter.lora.alpha", "must be finite");
  GptConfig plain = base;
  plain.lora = {};
  const Gpt model(plain);
  std::vector<AdaptableLayer> layers = AdaptableLayers(model);
  std::erase_if(layers, [](const AdaptableLayer& layer) { return layer.expert >= 0; });
  GgufAdapter out{.config = {}, .tensors = {.source = file.source(), .by_name = {}}};
  PeftConfig& config = out.config;
  std::set<std::string, std::less<>> used;
  for (const AdaptableLayer& layer : layers) {
    for (const auto& [module, slice, rows] : layer.parts) {
      const GgufPlace place = GgufPlaceOf(architecture, model.config(), module + ".weight");
      for (const bool is_b : {false, true}) {
        const GgufEntry* entry = file.Find(place.name + (is_b ? ".lora_b" : ".lora_a"));
        if (entry == nullptr) continue;
        used.insert(entry->name);
        const std::string name =
            StrCat("base_model.model.", module, is_b ? ".lora_B" : ".lora_A", ".weight");
        const bool interleaved = is_b && place.interleaved;
        const int64_t head_dim = model.config().head_dim;
        out.tensors.by_name[name] =
            Stored(file, *entry, name, [interleaved, head_dim](const Tensor& x) {
              return interleaved ? Deinterleaved(x, head_dim) : x;
            });
        if (is_b) continue;
        const int64_t rank = entry->shape[0];
        if (config.target_modules.empty()) config.rank = rank;
        config.target_modules.push_back(module);
        if (rank != config.rank) config.rank_pattern.emplace_back(module, rank);
      }
    }
  }
  for (const auto& [name, entry] : file.tensors()) {
    if (used.contains(name)) continue;
    throw InputError(StrCat(
        file.source(), ": tensor '", name,
        "' belongs to no matrix of this model that can have an adapter: ", AdaptableNames(layers)));
  }
  config.alpha = alpha;
  if (alpha == 0) {  // B A as it is, whatever the ranks
    config.alpha = static_cast<double>(config.rank);
    for (const auto& [module, rank] : config.rank_pattern) {
      config.alpha_pattern.emplace_back(module, static_cast<double>(rank));
    }
  }
  return out;
}

}  // namespace lockstep::models
