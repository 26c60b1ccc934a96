// The tensors of a GGUF file, under Hugging Face's names.
#include <algorithm>
#include <set>

#include "models/gpt/gguf/gguf_names.h"
#include "models/gpt/gguf/gguf_reader.h"
#include "models/gpt/hf/hf_format.h"

namespace lockstep::models {
namespace {

// The inverse of what was done to write it.
Tensor Restored(const GgufEntry& entry, const GgufPlace& place, int64_t head_dim) {
  const Tensor x = entry.ToTensor();
  return place.transposed    ? x.Transpose(0, 1).Contiguous()
         : place.plus_one    ? PlusNumber(x, -1)
         : place.interleaved ? Deinterleaved(x, head_dim)
                             : x;
}

// In the file, `name` with the shape that the model needs; InputError if it has another.
GgufEntry Part(const GgufFile& file, const GgufEntry& whole, const GgufPlace& place,
               const GptConfig& c, std::vector<int64_t> shape) {
  if (place.transposed) std::swap(shape[0], shape[1]);
  if (place.expert >= 0) shape.insert(shape.begin(), c.mixture.n_expert);
  const Shape needed{std::span<const int64_t>(shape)};
  if (!(whole.shape == needed)) {
    throw InputError(StrCat(file.source(), ": tensor '", whole.name, "' has shape ", whole.shape,
                            ", but by the file's keys it has ", needed));
  }
  return place.expert >= 0 ? whole.Slice(place.expert) : whole;
}

}  // namespace

StoredTensors HfTensorsOf(const GgufFile& file) {
  const GptConfig c = FromHfConfig(HfConfigOf(file), file.source());
  const std::string arch = file.metadata().Text("general.architecture", "");
  const auto all = GgufArchitectures();
  const GgufArchitecture& a = *std::ranges::find(all, arch, &GgufArchitecture::name);
  Gpt model(c);
  model.Materialize(kMeta, 0);
  StoredTensors out{.source = file.source(), .by_name = {}};
  const auto source = std::make_shared<const std::string>(file.source());
  // What is not read: Llama's frequencies are in the configuration.
  std::set<std::string, std::less<>> used = {"rope_freqs.weight"};
  if (c.tie_embeddings) used.insert("output.weight");
  std::string missing, unknown;
  for (const SafetensorsItem& item : ToHfTensors(model)) {
    const GgufPlace place = GgufPlaceOf(a, c, item.name);
    const GgufEntry* whole = file.Find(place.name);
    used.insert(place.name);
    if (whole == nullptr) {
      missing += " " + place.name;
      continue;
    }
    const GgufEntry entry = Part(file, *whole, place, c, item.shape);
    const DType dtype = place.plus_one ? DType::kF32 : GgufDType(entry.type);
    out.by_name[item.name] = {
        {.name = item.name,
         .dtype_name = std::string(SafetensorsName(dtype)),
         .shape = item.shape,
         .bytes = entry.bytes,
         .source = source},
        // The handle keeps the file mapped.
        [file, entry, place, head_dim = c.head_dim] { return Restored(entry, place, head_dim); }};
  }
  for (const auto& [name, entry] : file.tensors()) {
    if (!used.contains(name)) unknown += " " + name;
  }
  if (!missing.empty()) {
    throw InputError(StrCat(file.source(), ": tensors of this model are missing:", missing));
  }
  if (!unknown.empty()) {
    throw InputError(StrCat(file.source(), ": this model has no use for these tensors:", unknown));
  }
  return out;
}

}  // namespace lockstep::models
