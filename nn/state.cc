#include "nn/state.h"

#include <set>

#include "core/io/file.h"
#include "core/io/safetensors.h"

namespace lockstep::nn {

NamedTensors StateOf(const Module& module) {
  NamedTensors out;
  for (const auto& [name, p] : module.NamedParameters()) {
    out.emplace_back(name, p->value().Detach());
  }
  for (const auto& [name, buffer] : module.NamedBuffers()) out.emplace_back(name, buffer);
  return out;
}

void CheckState(const Module& module, const NamedTensors& state) {
  const NamedTensors own = StateOf(module);
  const std::map<std::string, Tensor> expected(own.begin(), own.end());
  std::set<std::string> given;
  for (const auto& [name, tensor] : state) {
    const auto it = expected.find(name);
    if (it == expected.end()) {
      throw InputError(
          StrCat("module state: unknown tensor '", name, "': it belongs to another model"));
    }
    if (!given.insert(name).second) {
      throw InputError(StrCat("module state: the tensor '", name, "' is given twice"));
    }
    const Tensor& want = it->second;
    LS_CHECK(!want.device().is_meta(), "module state: '", name,
             "' has no memory yet: call Materialize first");
    if (!tensor.defined() || !(tensor.shape() == want.shape()) || tensor.dtype() != want.dtype()) {
      throw InputError(StrCat("module state: '", name, "' must be ", want.dtype(), want.shape(),
                              ", got ", tensor.Describe(), ": it belongs to another model"));
    }
  }
  for (const auto& [name, tensor] : own) {
    if (!given.contains(name)) {
      throw InputError(StrCat("module state: the tensor '", name, "' is missing (", given.size(),
                              " of ", own.size(), " are there)"));
    }
  }
}

void LoadState(Module& module, const NamedTensors& state) {
  CheckState(module, state);
  const NamedTensors own = StateOf(module);
  const std::map<std::string, Tensor> to(own.begin(), own.end());
  for (const auto& [name, tensor] : state) to.at(name).CopyFrom(tensor);
}

void SaveModule(const Module& module, const std::string& path) {
  for (const auto& [name, p] : module.NamedParameters()) {
    LS_CHECK(p->value().shape() == p->logical_shape(), "this rank has only a part of '", name,
             "', ", p->value().Describe(), ": save the module within a dist::FullyShard::Whole");
  }
  std::vector<SafetensorsItem> items;
  for (const auto& [name, tensor] : StateOf(module)) {
    items.push_back(SafetensorsItem::Of(name, tensor));
  }
  SaveTensors(path, items);
}

void LoadModule(Module& module, const std::string& path) {
  const SafetensorsFile file = SafetensorsFile::Open(path);
  NamedTensors state;
  for (const SafetensorsEntry& entry : file.entries()) {
    state.emplace_back(entry.name, entry.ToTensor());
  }
  try {
    LoadState(module, state);
  } catch (const InputError& e) {
    throw InputError(StrCat(path, ": ", e.what()));
  }
}

void SaveTensors(const std::string& path, std::span<const SafetensorsItem> items,
                 const std::map<std::string, std::string>& metadata) {
  ReplaceFile(path, [&](FileWriter& file) { WriteSafetensors(file, items, metadata); });
}

}  // namespace lockstep::nn
