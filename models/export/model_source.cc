#include "models/export/model_source.h"

#include "core/io/file.h"
#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/tensor_parts.h"
#include "models/gpt/gguf/gguf_file.h"
#include "models/gpt/hf/stored_tensors.h"
#include "models/gpt/peft/adapter.h"

namespace lockstep::models {
namespace {

HeldCheckpoint Hold(const std::string& given) {
  HeldCheckpoint held = HoldCheckpoint(given);
  const std::string& path = held.path();
  if (GgufFile::Is(path)) return held;
  if (!IsDirectory(path)) throw InputError(StrCat(path, ": there is no such folder"));
  if (!PathExists(JoinPath(path, "config.json")) && !PeftAdapter::Exists(path)) {
    throw InputError(StrCat(path,
                            ": has no config.json: give a checkpoint, the folder of a run that has "
                            "one, or a Hugging Face folder"));
  }
  return held;
}

}  // namespace

ModelSource OpenModel(const std::string& path, const std::string& adapter) {
  ModelSource source;
  source.held.push_back(Hold(path));
  source.folder = source.held[0].path();
  VerifyModelAndBase(source.folder);
  if (PeftAdapter::Exists(source.folder)) {
    if (!adapter.empty()) {
      throw InputError(StrCat(source.folder,
                              " has adapters itself: with --adapter name the folder of the weights "
                              "without any"));
    }
    source.adapter_folder = source.folder;
  } else if (!adapter.empty()) {
    source.held.push_back(Hold(adapter));
    source.adapter_folder = source.held[1].path();
    VerifyModel(source.adapter_folder);
  }
  const std::string weights = source.weights_folder = WeightsOf(source.folder);
  source.model = std::make_unique<Gpt>(ReadHfConfig(weights));
  source.model->Materialize(kMeta, 0);
  if (TensorParts::Exist(weights)) {
    const TensorParts parts = TensorParts::Open(weights, "model");
    source.dtype = parts.dtype("wte.weight");
    source.weight = [parts](const std::string& name, const Parameter& p) {
      return parts.ReadPart(name, p).To(DType::kF32);
    };
  } else {
    source.weight = HfWeightSource(*source.model, weights);
    source.dtype = StoredDType(weights);
  }
  return source;
}

}  // namespace lockstep::models
