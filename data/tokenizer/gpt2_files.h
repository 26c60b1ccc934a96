// GPT-2's vocabulary in forms other than tokenizer.json.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "data/tokenizer/tokenizer.h"

namespace lockstep::data {

// OpenAI's vocabulary: 256 bytes, 50,000 merges and, last, <|endoftext|>.
inline constexpr int64_t kGpt2VocabSize = 50257;

// The readers give the same ids as OpenAI's encoder and tiktoken's "gpt2". They throw InputError
// for vocabularies that are not byte-level ones.

// GPT-2's encoder.json (token -> id, an object) and vocab.bpe (a merge per line).
std::unique_ptr<Tokenizer> FromGpt2Files(const nlohmann::json& encoder, std::string_view vocab_bpe,
                                         const std::string& encoder_origin,
                                         const std::string& bpe_origin);

// The "tokens" and "merges" of Lockstep's own type "gpt2", which checkpoints had before they had
// tokenizer.json.
std::unique_ptr<Tokenizer> FromGpt2Json(const nlohmann::json& json, const std::string& origin);

}  // namespace lockstep::data
