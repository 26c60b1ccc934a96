// Which tokens positions in a text fall on.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "data/tokenizer/tokenizer.h"

namespace lockstep::data {

// For each of `borders`, positions in the text in ascending order: the first of `ids` that begins
// there or later, or ids.size(). `ids` are the tokens of `text`, with or without special tokens.
std::vector<int64_t> FirstTokensAt(const Tokenizer& tokenizer, std::string_view text,
                                   std::span<const int32_t> ids, bool special_tokens,
                                   std::span<const int64_t> borders);

}  // namespace lockstep::data
