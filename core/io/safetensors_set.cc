
#include "core/error.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "core/io/safetensors.h"

namespace lockstep {
namespace {

void RefusePickles(const std::string& folder) {
  for (const char* name : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    if (!PathExists(JoinPath(folder, name))) continue;
    throw InputError(
        StrCat(JoinPath(folder, name),
               ": weights in Python's pickle format, which run code when they are ",
               "read, and there is no model.safetensors. Convert them once, in Python: ",
               "transformers.AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW)"));
  }
}

}  // namespace

SafetensorsSet SafetensorsSet::Open(const std::string& path) {
  if (IsDirectory(path)) {
    // As transformers: an index beside the single file is what an earlier save has left.
    const std::string index = JoinPath(path, "model.safetensors.index.json");
    const bool single = PathExists(JoinPath(path, "model.safetensors"));
    if (!single && PathExists(index)) return OpenIndex(path, index);
    if (!single) RefusePickles(path);
  }
  SafetensorsSet set;
  set.source_ = IsDirectory(path) ? JoinPath(path, "model.safetensors") : path;
  set.files_.push_back(SafetensorsFile::Open(set.source_));
  for (const SafetensorsEntry& entry : set.files_.front().entries()) {
    set.entries_.emplace(entry.name, &entry);
  }
  return set;
}

SafetensorsSet SafetensorsSet::OpenIndex(const std::string& folder, const std::string& path) {
  const Json index = ParseJson(ReadFile(path), path);
  const Json* map = index.Find("weight_map");
  if (map == nullptr || !map->is_object() || map->empty()) {
    throw InputError(StrCat(path, ": weight_map: must be an object that names each tensor's file"));
  }
  std::map<std::string, std::vector<std::string>> tensors_of_shard;
  for (const auto& [tensor, shard] : map->items()) {
    if (!shard.is_string()) {
      throw InputError(
          StrCat(path, ": weight_map: the value of ", Quoted(tensor), " must be a file name"));
    }
    const std::string name = shard.get<std::string>();
    if (name.empty() || name.find('/') != std::string::npos ||
        name.find('\0') != std::string::npos) {
      throw InputError(StrCat(path, ": weight_map: ", Quoted(tensor), " is in ", Quoted(name),
                              ", which is not the name of a file in the same folder"));
    }
    tensors_of_shard[name].push_back(tensor);
  }
  SafetensorsSet set;
  set.source_ = path;
  for (const auto& [shard, tensors] : tensors_of_shard) {
    set.files_.push_back(SafetensorsFile::Open(JoinPath(folder, shard)));
    const SafetensorsFile& file = set.files_.back();
    for (const std::string& tensor : tensors) {
      const SafetensorsEntry* entry = file.Find(tensor);
      if (entry == nullptr) {
        throw InputError(StrCat(path, ": weight_map: says that ", Quoted(tensor), " is in ",
                                file.source(), ", which has no such tensor"));
      }
      set.entries_.emplace(tensor, entry);
    }
  }
  return set;
}

std::vector<std::string> SafetensorsSet::names() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_) names.push_back(name);
  return names;
}

const SafetensorsEntry* SafetensorsSet::Find(std::string_view name) const {
  const auto at = entries_.find(name);
  return at == entries_.end() ? nullptr : at->second;
}

const SafetensorsEntry& SafetensorsSet::Get(std::string_view name) const {
  if (const SafetensorsEntry* entry = Find(name)) return *entry;
  throw InputError(
      StrCat(source_, ": has no tensor ", Quoted(name), " among its ", entries_.size()));
}

}  // namespace lockstep
