// Byte-level vocabularies in forms other than tokenizer.json.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/io/json.h"
#include "data/tokenizer/tokenizer.h"

namespace lockstep::data {

// OpenAI's vocabulary: 256 bytes, 50,000 merges and, last, <|endoftext|>.
inline constexpr int64_t kGpt2VocabSize = 50257;

inline constexpr const char* kEndOfText = "<|endoftext|>";

struct VocabularyKind {
  bool qwen2 = false;  // text is composed (NFC) and cut as Qwen 2 does; else as GPT-2
  bool add_prefix_space = false;
};

// A tokenizer.json, without added tokens, made of the object in a vocab.json and the merges, such
// as "l o".
Json VocabularyJson(Json vocabulary, Json merges, const VocabularyKind& kind);
// The merges of a merges.txt, one a line. Throws InputError.
Json MergesOf(std::string_view merges_txt, const std::string& origin);

// The "tokens" and "merges" of Lockstep's own type "gpt2", which checkpoints had before they had
// tokenizer.json.
std::unique_ptr<Tokenizer> FromGpt2Json(const Json& json, const std::string& origin);

}  // namespace lockstep::data
