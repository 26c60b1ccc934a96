// Where a long text may be cut into parts that are encoded one by one, with the ids of the whole.
#pragma once

#include <cstddef>
#include <string_view>

#include "data/tokenizer/tokenizer.h"

namespace lockstep::data {

// The first place in [from, to) at which `text` may be cut, or npos. It lies between a letter or a
// number and ASCII white space; or after a \n that does not follow white space, before a letter,
// since in many texts all lines end with punctuation. There the patterns of GPT-2, Llama 3, Qwen,
// GPT-4o and Tekken end a word and begin another, whatever precedes and follows, and no token of
// SentencePiece's kind crosses it. Malformed UTF-8 is not a letter. Looks at up to 4 bytes before
// and after a place.
size_t FindTextCut(std::string_view text, size_t from, size_t to);

// Whether EncodeTo of a text up to such a place and EncodeRestTo of what follows give the ids of
// the whole, as far as texts with all kinds of characters around such places tell. False for
// tokenizers with a split pattern of their own whose words go on behind them, or with a token that
// is several words.
bool EncodesInParts(const Tokenizer& tokenizer);

}  // namespace lockstep::data
