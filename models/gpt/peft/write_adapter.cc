#include "models/gpt/peft/write_adapter.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "core/io/file.h"
#include "models/gpt/peft/adapter.h"
#include "models/gpt/peft/layer_names.h"
#include "nn/lora/lora.h"

namespace lockstep::models {
namespace {

// A module's adapter.
struct Adapted {
  std::string module;
  int64_t rank = 0;
  double alpha = 0;
};

double AlphaOf(const nn::LoraSlice& slice, bool rank_stabilized) {
  const auto rank = static_cast<double>(slice.rank);
  const double alpha = slice.scale * (rank_stabilized ? std::sqrt(rank) : rank);
  const double whole = std::round(alpha);
  return std::abs(alpha - whole) <= 1e-12 * std::abs(whole) ? whole : alpha;
}

std::string LastOf(const std::string& module) { return module.substr(module.rfind('.') + 1); }

// Short names for these of all modules: "q_proj" if all modules of that name are among them.
std::vector<std::string> ShortNames(const std::vector<Adapted>& some,
                                    const std::vector<std::string>& all) {
  std::map<std::string, int64_t> left;
  for (const std::string& module : all) ++left[LastOf(module)];
  for (const Adapted& adapted : some) --left[LastOf(adapted.module)];
  std::set<std::string> names;
  for (const Adapted& adapted : some) {
    const std::string last = LastOf(adapted.module);
    names.insert(left[last] == 0 ? last : adapted.module);
  }
  return {names.begin(), names.end()};
}

// The value that most have.
template <class T>
T Usual(const std::vector<Adapted>& all, T Adapted::*field) {
  std::map<T, int64_t> counts;
  for (const Adapted& adapted : all) ++counts[adapted.*field];
  return std::ranges::max_element(counts, {}, [](const auto& x) { return x.second; })->first;
}

// For those with another value than `usual`: by the last name where all modules of that name agree.
template <class T>
std::vector<std::pair<std::string, T>> Unusual(const std::vector<Adapted>& all, T Adapted::*field,
                                               T usual) {
  std::map<std::string, std::set<T>> values;
  for (const Adapted& adapted : all) values[LastOf(adapted.module)].insert(adapted.*field);
  std::map<std::string, T> out;
  for (const Adapted& adapted : all) {
    const std::string last = LastOf(adapted.module);
    if (adapted.*field != usual) {
      out[values[last].size() == 1 ? last : adapted.module] = adapted.*field;
    }
  }
  return {out.begin(), out.end()};
}

}  // namespace

PeftConfig PeftConfigOf(Gpt& model, bool rank_stabilized) {
  std::map<std::string, const nn::LoraAdapter*> adapters;
  for (const nn::LoraAdapter* adapter : nn::LoraAdapters(model)) {
    adapters[adapter->adapter_path()] = adapter;
  }
  LS_CHECK(!adapters.empty(), "the model has no adapters");
  std::vector<std::string> modules;
  std::vector<Adapted> adapted;
  for (const AdaptableLayer& layer : AdaptableLayers(model)) {
    const auto it = adapters.find(layer.path);
    for (size_t i = 0; i < layer.parts.size(); ++i) {
      const std::string& module = layer.parts[i].module;
      modules.push_back(module);
      if (it == adapters.end() || it->second->slices().at(i).rank == 0) continue;
      const nn::LoraSlice& slice = it->second->slices()[i];
      adapted.push_back({module, slice.rank, AlphaOf(slice, rank_stabilized)});
    }
  }
  PeftConfig config{.rank = Usual(adapted, &Adapted::rank),
                    .alpha = Usual(adapted, &Adapted::alpha),
                    .rank_stabilized = rank_stabilized,
                    .fan_in_fan_out = HfModelType(model.config()) == "gpt2",
                    .target_modules = ShortNames(adapted, modules)};
  config.rank_pattern = Unusual(adapted, &Adapted::rank, config.rank);
  config.alpha_pattern = Unusual(adapted, &Adapted::alpha, config.alpha);
  std::set<std::string> saved;
  for (const auto& [name, p] : StoredParameters(model)) {
    if (!p->trainable()) continue;
    for (const auto& part : ModuleRowsOf(model.config(), name, *p)) saved.insert(part.module);
  }
  config.modules_to_save.assign(saved.begin(), saved.end());
  return config;
}

std::vector<SafetensorsItem> ToPeftTensors(const Gpt& model) {
  return ToPeftTensors(
      model, [](const std::string&, const Parameter& p) { return p.WholeOf(p.value().Detach()); });
}

std::vector<SafetensorsItem> ToPeftTensors(const Gpt& model, const WeightSource& weight,
                                           const std::function<DType(const Parameter&)>& dtype_of) {
  std::map<std::string, std::shared_ptr<Parameter>> parameters;
  for (const auto& [name, p] : model.NamedParameters()) parameters[name] = p;
  std::vector<SafetensorsItem> items;
  const auto add = [&](const std::string& key, const std::string& name,
                       const std::shared_ptr<Parameter>& p, const Shape& shape,
                       std::function<Tensor(const Tensor&)> part) {
    items.push_back(
        SafetensorsItem::Of("base_model.model." + key, dtype_of ? dtype_of(*p) : p->value().dtype(),
                            shape, [weight, name, p, part] { return part(weight(name, *p)); }));
  };
  for (const AdaptableLayer& layer : AdaptableLayers(model)) {
    const std::string a_name = layer.path + ".lora_A.weight";
    const auto a = parameters.find(a_name);
    if (a == parameters.end()) continue;
    int64_t first = 0;
    for (const auto& [module, slice, rows] : layer.parts) {
      const std::string b_name =
          StrCat(layer.path, ".lora_B.", slice, slice.empty() ? "" : ".", "weight");
      const auto b = parameters.find(b_name);
      if (b == parameters.end()) continue;
      const int64_t rank = b->second->logical_shape()[-1];
      add(module + ".lora_A.weight", a_name, a->second, {rank, layer.in_features},
          [layer, first, rank](const Tensor& whole) {
            return layer.Of(whole).Slice(0, first, first + rank);
          });
      add(module + ".lora_B.weight", b_name, b->second, {rows, rank},
          [layer](const Tensor& whole) { return layer.Of(whole); });
      first += rank;
    }
  }
  for (const auto& [name, p] : StoredParameters(model)) {
    if (!p->trainable()) continue;
    for (const auto& [rows, module, kind] : ModuleRowsOf(model.config(), name, *p)) {
      add(module + "." + kind, name, p, rows.ShapeOf(p->logical_shape()),
          [rows = rows](const Tensor& whole) { return rows.Of(whole); });
    }
  }
  return items;
}

void WriteAdapter(const std::string& folder, const Gpt& model, const PeftConfig& config,
                  const std::string& base_hash) {
  MakeDirectories(folder);
  FileWriter file(JoinPath(folder, kAdapterTensors));
  std::map<std::string, std::string> metadata;
  if (!base_hash.empty()) metadata[kBaseHashEntry] = base_hash;
  WriteSafetensors(file, ToPeftTensors(model), metadata);
  file.Sync();
  file.Close();
  WriteFileAtomically(JoinPath(folder, kAdapterConfig), ToJson(config));
}

}  // namespace lockstep::models
