// generation_config.json of a Hugging Face folder: how transformers generates, and after which
// tokens it stops.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "data/tokenizer/tokenizer.h"

namespace lockstep::models {

inline constexpr char kGenerationConfig[] = "generation_config.json";

// `given`, the file of the model from which this one was made, or one of the tokenizer (null: there
// is none) where that is "". `ends`, after which an answer ends, are added to its eos_token_id.
// `origin` is the path of `given`, for the InputError that says that it is no JSON object.
std::string GenerationConfig(const data::Tokenizer* tokenizer, std::span<const int32_t> ends,
                             const std::string& given, const std::string& origin);

}  // namespace lockstep::models
