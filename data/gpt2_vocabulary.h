// The vocabulary of a byte-level BPE tokenizer, and the files it comes in.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/bpe.h"

namespace lockstep::data {

// OpenAI's: 256 bytes, 50,000 merges and <|endoftext|>, which is the last.
inline constexpr int64_t kGpt2VocabSize = 50257;

struct Gpt2Vocabulary {
  std::vector<std::string> tokens;  // id -> bytes
  std::vector<BpeMerge> merges;     // in order of precedence
  std::vector<int32_t> byte_ids;    // [256]: byte -> id of the token that is this byte
  std::optional<int32_t> end_of_text;
};

// The readers take JSON that is an object. They throw InputError naming `origin` for anything
// missing or of the wrong type, tokens twice, ids that are not exactly 0 to n - 1, merges of
// unknown tokens or twice of the same pair, and a byte without a token.

// GPT-2's encoder.json (token -> id) and vocab.bpe (a merge a line).
Gpt2Vocabulary ParseGpt2Files(const nlohmann::json& encoder, std::string_view vocab_bpe,
                              const std::string& encoder_origin, const std::string& bpe_origin);

// Hugging Face's tokenizer.json, if it says GPT-2's algorithm: a BPE model with a ByteLevel
// pre-tokenizer and nothing more. Whatever else would change the ids is refused, not ignored.
Gpt2Vocabulary ParseHuggingFaceTokenizer(const nlohmann::json& json, const std::string& origin);

// "tokens" and "merges" of Gpt2Tokenizer::ToJson.
Gpt2Vocabulary ParseGpt2Json(const nlohmann::json& json, const std::string& origin);

// GPT-2 writes bytes as printable characters: those of Latin-1 that print stand for themselves, the
// others for U+0100 and up.
std::string BytesToPrintable(std::string_view bytes);

}  // namespace lockstep::data
