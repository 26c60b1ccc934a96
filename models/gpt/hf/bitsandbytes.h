// Weights of 4 bits in Hugging Face folders, as bitsandbytes writes them: with each matrix `name`,
// U8, its scales and their description, name.absmax, name.quant_state.bitsandbytes__nf4 and others.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "core/io/safetensors.h"
#include "kernels/nf4/nf4.h"
#include "models/gpt/hf/fields.h"

namespace lockstep::models {

// An entry of the folder, null if there is none.
using FindEntry = std::function<const SafetensorsEntry*(const std::string& name)>;

// The matrix of this shape; nullopt if its weights are not in 4 bits. Throws InputError naming file
// and tensor if the matrix has another shape, code or block.
std::optional<Nf4Matrix> ReadBitsAndBytes(const FindEntry& find, const std::string& name,
                                          const Shape& shape);

// How a folder stores the matrices of attention and MLPs, according to its config.json: "nf4" or
// "nf4_single" (4 bits, with scales of 8 bits or in f32), else "model", as in lora.base.
std::string BaseIn(const std::string& folder);

// Throws InputError naming the field if config.json has a "quantization_config" of another method.
void CheckQuantizationConfig(const Fields& f);

}  // namespace lockstep::models
