// The tensors of a model on disk.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "core/io/safetensors.h"

namespace lockstep::models {

struct StoredTensor {
  // Its name, dtype and shape. The bytes are the file's, which in GGUF may be of another type and
  // order: call `read`.
  SafetensorsEntry entry;
  std::function<Tensor()> read;  // a copy on the CPU, of that dtype and shape
};

// By their names in Hugging Face's folders. What they read lives as long as they do.
struct StoredTensors {
  std::string source;  // for messages
  std::map<std::string, StoredTensor, std::less<>> by_name;

  // Those of a safetensors file, of a folder (SafetensorsSet), or of a GGUF file (HfTensorsOf).
  static StoredTensors Open(const std::string& path);

  // nullptr if there is none.
  const StoredTensor* Find(std::string_view name) const;
};

// The dtype of most of a model's weights there; f32 for quantised GGUF.
DType StoredDType(const std::string& path);

}  // namespace lockstep::models
