#include "models/gpt/hf/stored_tensors.h"

#include "models/gpt/gguf/gguf_reader.h"

namespace lockstep::models {

StoredTensors StoredTensors::Open(const std::string& path) {
  if (GgufFile::Is(path)) return HfTensorsOf(GgufFile::Open(path));
  const auto set = std::make_shared<const SafetensorsSet>(SafetensorsSet::Open(path));
  StoredTensors out{.source = set->source(), .by_name = {}};
  for (const std::string& name : set->names()) {
    const SafetensorsEntry& entry = set->Get(name);
    // The set keeps the file mapped.
    out.by_name[name] = {entry, [set, &entry] { return entry.ToTensor(); }};
  }
  return out;
}

const StoredTensor* StoredTensors::Find(std::string_view name) const {
  const auto it = by_name.find(name);
  return it == by_name.end() ? nullptr : &it->second;
}

DType StoredDType(const std::string& path) {
  // In GGUF, vectors and positions are f32 whatever the others are.
  if (GgufFile::Is(path)) return GgufDType(GgufFile::Open(path).Get(kGgufEmbedding).type);
  const SafetensorsSet set = SafetensorsSet::Open(path);
  return set.Get(set.names().front()).dtype();
}

}  // namespace lockstep::models
