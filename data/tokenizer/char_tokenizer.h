// One token per Unicode character of a text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/tokenizer.h"

namespace lockstep::data {

// Ids are the ranks of the code points in ascending order, as in nanoGPT's shakespeare_char.
class CharTokenizer : public Tokenizer {
 public:
  // The vocabulary is the set of characters in `text`. Throws InputError if it is empty or not
  // well-formed UTF-8.
  explicit CharTokenizer(std::string_view text);

  // Throws InputError for malformed UTF-8, and for characters outside the vocabulary, naming the
  // character and its byte position.
  std::vector<int32_t> Encode(std::string_view text) const override;
  std::string Decode(std::span<const int32_t> ids) const override;
  int64_t vocab_size() const override { return static_cast<int64_t>(characters_.size()); }
  std::string_view name() const override { return "char"; }
  std::string ToJson() const override;
  std::string ConfigJson() const override;

 private:
  std::vector<uint32_t> characters_;  // id -> code point, ascending
  std::vector<int32_t> ids_;          // code point -> id or -1, up to the largest code point
};

}  // namespace lockstep::data
