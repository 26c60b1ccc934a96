// Tokenizers in GGUF.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/tokenizer/tokenizer.h"
#include "models/export/gguf_writer.h"

namespace lockstep::models {

struct GgufTokenizer {
  GgufMetadata metadata;  // tokenizer.ggml.*
  // What llama.cpp does differently, a sentence each.
  std::vector<std::string> differences;
};

// A tokenizer for a model with `vocab_size` tokens; ids without a token are called [PAD...] and
// marked as unused, and added tokens without an id in the model are left out. Byte-level ones are
// "gpt2" in GGUF, with the name of llama.cpp's pattern for the cut into words. Those in the style
// of SentencePiece are "llama", where the rank of a merge becomes the score of the token that it
// makes; they must have all the merges that make a token, as those that come from SentencePiece do.
// Characters and bytes are "rwkv", which takes the longest token that fits.
//
// Throws InputError that names `origin` and the field for what has no counterpart in llama.cpp, and
// for a vocabulary that is larger than the model's.
GgufTokenizer ToGgufTokenizer(const data::Tokenizer& tokenizer, int64_t vocab_size,
                              const std::string& origin);

}  // namespace lockstep::models
