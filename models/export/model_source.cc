#include "models/export/model_source.h"

#include "core/io/file.h"
#include "core/io/safetensors.h"
#include "models/checkpoint/checkpoint_manifest.h"
#include "models/checkpoint/checkpoint_store.h"
#include "models/checkpoint/tensor_parts.h"

namespace lockstep::models {
namespace {

std::string FolderOf(const std::string& path) {
  if (!IsDirectory(path)) throw InputError(StrCat(path, ": there is no such folder"));
  for (const char* name : {"best", "latest"}) {
    if (const std::string link = JoinPath(path, name); PathExists(link)) return link;
  }
  if (!PathExists(JoinPath(path, "config.json"))) {
    throw InputError(StrCat(path,
                            ": has no config.json: give a checkpoint, the folder of a run that has "
                            "one, or a Hugging Face folder"));
  }
  return path;
}

}  // namespace

ModelSource OpenModel(const std::string& path) {
  ModelSource source{.folder = FolderOf(path), .model = nullptr, .weight = {}};
  const std::string& folder = source.folder;
  if (PathExists(JoinPath(folder, kManifestName))) CheckpointStore::Verify(folder);
  source.model = std::make_unique<Gpt>(ReadHfConfig(folder));
  source.model->Materialize(kMeta, 0);
  if (TensorParts::Exist(folder)) {
    const TensorParts parts = TensorParts::Open(folder, "model");
    source.dtype = parts.dtype("wte.weight");
    source.weight = [parts](const std::string& name, const Parameter& p) {
      return parts.ReadPart(name, p).To(DType::kF32);
    };
  } else {
    source.weight = HfWeightSource(*source.model, folder);
    const SafetensorsSet set = SafetensorsSet::Open(folder);
    source.dtype = set.Get(set.names().front()).dtype();
  }
  return source;
}

}  // namespace lockstep::models
