// Models in GGUF: which architecture of llama.cpp fits a model, its keys, and the names of its
// tensors there.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/io/safetensors_writer.h"
#include "models/export/gguf_writer.h"
#include "models/gpt/gguf/gguf_names.h"
#include "models/gpt/gpt_config.h"

namespace lockstep::models {

// The model's in llama.cpp; InputError that says what there is if it has none.
const GgufArchitecture& GgufArchitectureOf(const GptConfig& config);
// general.file_type of a file whose matrices have this type: llama.cpp's enumeration.
uint32_t GgufFileType(GgufType type);

struct GgufModel {
  GgufMetadata metadata;  // the model's: general.* and those that begin with the architecture
  std::vector<GgufTensor> tensors;
};

// `weights`: ToHfTensors of the model. `name`: general.name. Matrices are of `type`; vectors,
// routers and learned positions are f32, and matrices whose rows are not whole blocks are f16 if
// Q8_0 is wanted, as in llama.cpp's own converter. Llama's queries and keys are reordered from
// split halves to neighbouring pairs, Gemma's norms become w + 1, GPT-2's matrices are [out, in].
//
// Throws InputError that names the field of config.json for what llama.cpp would compute
// differently.
GgufModel ToGguf(const GptConfig& config, std::span<const SafetensorsItem> weights, GgufType type,
                 const std::string& name);

}  // namespace lockstep::models
