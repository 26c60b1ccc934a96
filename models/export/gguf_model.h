// Models in GGUF: which architecture of llama.cpp has the parts of a model, its keys, and what its
// tensors are called there.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/io/safetensors_writer.h"
#include "models/export/gguf_writer.h"
#include "models/gpt/gpt_config.h"

namespace lockstep::models {

struct GgufModel {
  GgufMetadata metadata;  // the model's: general.* and those that begin with the architecture
  std::vector<GgufTensor> tensors;
};

// `weights`: ToHfTensors of the model. `name`: general.name. Matrices are of `type`; vectors,
// routers and learned positions are f32, and matrices whose rows are no whole blocks are f16 where
// Q8_0 is wanted, as llama.cpp's own converter has it. Llama's queries and keys are reordered from
// split halves to neighbouring pairs, Gemma's norms become w + 1, GPT-2's matrices are [out, in].
//
// InputError that names the field of config.json for what llama.cpp would compute otherwise.
GgufModel ToGguf(const GptConfig& config, std::span<const SafetensorsItem> weights, GgufType type,
                 const std::string& name);

}  // namespace lockstep::models
