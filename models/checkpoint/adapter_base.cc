#include "models/checkpoint/adapter_base.h"

#include <fmt/format.h>

#include <filesystem>
#include <iostream>

#include "core/io/file.h"
#include "core/io/json.h"
#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/checkpoint_manifest.h"
#include "models/gpt/hf/hf_format.h"

namespace lockstep::models {
namespace {

std::string NameOf(const std::string& folder) {
  std::error_code ignored;
  const std::filesystem::path path = std::filesystem::weakly_canonical(folder, ignored);
  return BaseName(ignored ? folder : path.string());
}

DType DTypeOf(const std::string& folder, const Gpt& model) {
  const std::string first = model.NamedParameters().at(0).first;
  if (TensorParts::Exist(folder)) return TensorParts::Open(folder, "model").dtype(first);
  const SafetensorsSet set = SafetensorsSet::Open(folder);
  return set.Get(set.names().at(0)).dtype();
}

}  // namespace

std::string HashOfBase(const std::string& folder) {
  return fmt::format("{:016x}", HashOfWeights(folder));
}

void CheckBase(const PeftAdapter& adapter, const std::string& base,
               const std::function<void(const std::string&)>& warn) {
  const std::string hash = adapter.base_hash(), &name = adapter.config().base;
  if (!hash.empty()) {
    if (hash == HashOfBase(base)) return;
    throw InputError(StrCat(adapter.folder(), " has adapters of other weights than those that are ",
                            "now in ", base,
                            name.empty() ? "" : StrCat(" (they were in ", name, ")"),
                            ": put those back, or name the folder that has them as the weights",
                            " (--checkpoint or --init_from)"));
  }
  if (name.empty() || NameOf(name) == NameOf(base)) return;
  const std::string text =
      StrCat(adapter.folder(), ": the adapter says that it belongs to ", Quoted(name),
             ", and nothing tells whether ", base, " has these weights");
  warn ? warn(text) : void(std::cerr << "warning: " << text << "\n");
}

MergedModel MergeAdapter(const std::string& base, const std::string& adapter_folder,
                         std::optional<DType> dtype) {
  const PeftAdapter adapter = PeftAdapter::Open(adapter_folder);
  const std::string folder = base.empty() ? WeightsOf(adapter_folder) : base;
  MergedModel merged{.model = std::make_unique<Gpt>(ReadHfConfig(folder))};
  Gpt& model = *merged.model;
  const DType stored = DTypeOf(folder, model);
  merged.dtype = dtype.value_or(stored);
  // Wide enough for both, so that the sum is rounded once, and the adapter is not.
  model.Materialize(kCpu, 0, merged.dtype == stored ? stored : DType::kF32);
  LoadWeights(folder, model);
  adapter.AddTo(model);
  for (const auto& [name, p] : nn::LoraParameters(model)) p->Materialize(kCpu, DType::kF32, 0);
  CheckBase(adapter, folder);
  adapter.LoadInto(model);
  merged.losses = nn::MergeLora(model, merged.dtype);
  return merged;
}

}  // namespace lockstep::models
