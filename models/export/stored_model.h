// A trained model on disk, whatever wrote it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/checkpoint/checkpoint_store.h"
#include "models/gpt/gpt.h"
#include "models/gpt/hf/hf_format.h"

namespace lockstep::models {

struct StoredModel {
  std::vector<HeldCheckpoint> held;
  std::string folder;          // what was opened: a checkpoint or a model's folder
  std::string weights_folder;  // with the weights: the same, or the folder of the adapters' base
  std::string adapter_folder;  // with adapters of these weights; "": there are none
  DType dtype = DType::kF32;   // of the weights, as stored
  std::unique_ptr<Gpt> model;  // without adapters, f32, on the meta device: names and shapes only
  // Reads the whole of a parameter, without adapters, in f32; valid as long as the model is.
  WeightSource weight;
};

// Opens a Hugging Face folder, a GGUF file, a checkpoint (verified), or a run's folder
// (CheckpointOf).
// `adapter` is a folder of adapters of these weights, from PEFT or a run; "": those of the
// checkpoint itself, if any. InputError, IoError.
StoredModel OpenStoredModel(const std::string& path, const std::string& adapter = "");

}  // namespace lockstep::models
