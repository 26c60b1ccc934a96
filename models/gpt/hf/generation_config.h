// generation_config.json of a Hugging Face folder: how transformers generates, and after which
// tokens it stops.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "data/tokenizer/tokenizer.h"

namespace lockstep::models {

inline constexpr char kGenerationConfig[] = "generation_config.json";

// Returns `given`, the file of the model from which this one was made, or if that is "" one made
// from the tokenizer (null: there is none). `ends`, the tokens after which an answer ends, are
// added to its eos_token_id. `origin` is the path of `given`, for the InputError if that is not a
// JSON object.
std::string GenerationConfig(const data::Tokenizer* tokenizer, std::span<const int32_t> ends,
                             const std::string& given, const std::string& origin);

}  // namespace lockstep::models
