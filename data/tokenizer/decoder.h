// Tokens back to text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/json_object.h"

namespace lockstep::data {

// The "decoder" of a tokenizer.json: ByteLevel, Metaspace, or a Sequence of Replace, ByteFallback,
// Fuse and Strip. Texts are bytes: where Hugging Face's library writes U+FFFD for what is not
// UTF-8, the bytes stay.
class Decoder {
 public:
  // The inverse of a byte-level vocabulary.
  static Decoder ByteLevel();
  // Throws InputError for anything else, and for steps in an order that no model has.
  explicit Decoder(const JsonObject& json);

  // The text that the token adds after other tokens.
  std::string Text(std::string_view token) const;

  // The text of a sequence, from the texts of its tokens joined; `first` is the size of the first
  // one. Models that put a space in front of each text drop it here.
  void FinishText(size_t first, std::string* text) const;

  bool byte_level() const { return byte_level_; }

 private:
  Decoder() = default;
  void Add(const JsonObject& json);

  bool byte_level_ = false, byte_fallback_ = false, fused_ = false;
  std::vector<std::pair<std::string, std::string>> replacements_;
  std::string strip_;         // a character
  int64_t strip_left_ = 0;    // at most this many of it are dropped at the start
  bool first_token_ = false;  // only of the first token
};

}  // namespace lockstep::data
