#include "models/export/stored_model.h"

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

StoredModel OpenStoredModel(const std::string& path, const std::string& adapter) {
  StoredModel stored;
  stored.held.push_back(Hold(path));
  stored.folder = stored.held[0].path();
  VerifyModelAndBase(stored.folder);
  if (PeftAdapter::Exists(stored.folder)) {
    if (!adapter.empty()) {
      throw InputError(StrCat(stored.folder,
                              " has adapters itself: with --adapter name the folder of the weights "
                              "without any"));
    }
    stored.adapter_folder = stored.folder;
  } else if (!adapter.empty()) {
    stored.held.push_back(Hold(adapter));
    stored.adapter_folder = stored.held[1].path();
    VerifyModel(stored.adapter_folder);
  }
  const std::string weights = stored.weights_folder = WeightsOf(stored.folder);
  stored.model = std::make_unique<Gpt>(ReadHfConfig(weights));
  stored.model->Materialize(kMeta, 0);
  if (TensorParts::Exist(weights)) {
    const TensorParts parts = TensorParts::Open(weights, "model");
    stored.dtype = parts.dtype("wte.weight");
    stored.weight = [parts](const std::string& name, const Parameter& p) {
      return parts.ReadPart(name, p).To(DType::kF32);
    };
  } else {
    stored.weight = HfWeightSource(*stored.model, weights);
    stored.dtype = StoredDType(weights);
  }
  return stored;
}

}  // namespace lockstep::models
