// The tokens of a prompt, as sample_gpt and serve take it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/tokenizer/tokenizer.h"

namespace lockstep::models {

// With `special_tokens`, those that the text spells become their ids, and what the model expects
// before a text (its bos) is put there, unless the text has it; otherwise all is text. An empty
// text is the token at which documents begin. InputError for an empty text if there is no such
// token, and for tokens that a model with so large a vocabulary does not have.
std::vector<int32_t> EncodePrompt(const std::string& text, const data::Tokenizer& tokenizer,
                                  bool special_tokens, int64_t vocab_size);

}  // namespace lockstep::models
