// Shared by the tokenizers: their JSON and the check of ids. Only for data/tokenizer/*.cc.
#pragma once

#include <string>
#include <string_view>

#include "core/error.h"
#include "core/io/json.h"
#include "data/tokenizer/tokenizer.h"

namespace lockstep::data {

// The format of files that earlier versions of Lockstep wrote.
inline constexpr std::string_view kTokenizerFormat = "lockstep-tokenizer";
inline constexpr int kTokenizerVersion = 1;

// The tokenizer_config.json of tokenizers without special tokens: transformers reads tokenizer.json
// as it is.
inline constexpr const char* kPlainConfig = R"({
  "tokenizer_class": "PreTrainedTokenizerFast",
  "clean_up_tokenization_spaces": false,
  "model_input_names": ["input_ids", "attention_mask"]
}
)";

// Throws InputError naming `origin` unless the text is one JSON object.
inline Json ParseJsonObject(std::string_view text, const std::string& origin) {
  Json json = ParseJson(text, origin);
  if (!json.is_object()) throw InputError(StrCat(origin, ": expected a JSON object"));
  return json;
}

inline void RequireTokenId(int32_t id, const Tokenizer& tokenizer) {
  LS_CHECK(id >= 0 && id < tokenizer.vocab_size(), "decode: token ", id,
           " is outside the vocabulary of the ", tokenizer.name(), " tokenizer (0 to ",
           tokenizer.vocab_size() - 1, ")");
}

}  // namespace lockstep::data
