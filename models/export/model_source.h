// A trained model on disk, whatever wrote it.
#pragma once

#include <memory>
#include <string>

#include "models/gpt/gpt.h"
#include "models/gpt/hf_format.h"

namespace lockstep::models {

struct ModelSource {
  std::string folder;          // with config.json, and the tokenizer's files if there are any
  DType dtype = DType::kF32;   // of the token embedding, as stored
  std::unique_ptr<Gpt> model;  // f32, on the meta device: names and shapes only
  // Reads the whole of a parameter, in f32; valid as long as the model is.
  WeightSource weight;
};

// Opens a Hugging Face folder, a checkpoint (verified), or a run's folder, of which it takes the
// best checkpoint if it has one, else the latest. InputError, IoError.
ModelSource OpenModel(const std::string& path);

}  // namespace lockstep::models
