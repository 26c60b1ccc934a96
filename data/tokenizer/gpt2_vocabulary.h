// The vocabulary of a byte-level BPE tokenizer, and readers of its files.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/bpe.h"

namespace lockstep::data {

// OpenAI's vocabulary: 256 bytes, 50,000 merges and, last, <|endoftext|>.
inline constexpr int64_t kGpt2VocabSize = 50257;

struct Gpt2Vocabulary {
  std::vector<std::string> tokens;  // id -> bytes
  std::vector<BpeMerge> merges;     // in order of precedence
  std::vector<int32_t> byte_ids;    // [256]: byte -> id of its token
  std::optional<int32_t> end_of_text;
};

// The readers take a JSON object. They throw InputError naming `origin` for anything missing or of
// the wrong type, repeated tokens, ids that are not exactly 0 to n - 1, merges of unknown tokens,
// repeated merges, and bytes without a token.

// GPT-2's encoder.json (token -> id) and vocab.bpe (one merge per line).
Gpt2Vocabulary ParseGpt2Files(const nlohmann::json& encoder, std::string_view vocab_bpe,
                              const std::string& encoder_origin, const std::string& bpe_origin);

// Hugging Face's tokenizer.json, if it describes GPT-2's algorithm: a BPE model with a ByteLevel
// pre-tokenizer. Anything else that would change the ids is an error.
Gpt2Vocabulary ParseHuggingFaceTokenizer(const nlohmann::json& json, const std::string& origin);

// The "tokens" and "merges" of Gpt2Tokenizer::ToJson.
Gpt2Vocabulary ParseGpt2Json(const nlohmann::json& json, const std::string& origin);

// GPT-2 writes bytes as printable characters: printable Latin-1 stands for itself, and U+0100 and
// up stand for the other bytes.
std::string BytesToPrintable(std::string_view bytes);

}  // namespace lockstep::data
