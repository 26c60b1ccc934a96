// Token ids as text, if their tokenizer is not known: "464 2068 7586".
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/tokenizer.h"

namespace lockstep::data {

// Reads numbers separated by white space, and writes each followed by a space. It replaces a
// missing tokenizer when text is shown to people; checkpoints then have none.
class IdTokenizer : public Tokenizer {
 public:
  explicit IdTokenizer(int64_t vocab_size) : vocab_size_(vocab_size) {}

  std::vector<int32_t> Encode(std::string_view text) const override;
  std::string Decode(std::span<const int32_t> ids) const override;
  int64_t vocab_size() const override { return vocab_size_; }
  std::string_view name() const override { return "ids"; }
  // GPT-2's, if the vocabulary has GPT-2's size, possibly padded to a multiple of 128.
  std::optional<int32_t> end_of_text() const override;
  // Throws ArgumentError, since there is nothing to write.
  std::string ToJson() const override;

 private:
  int64_t vocab_size_;
};

}  // namespace lockstep::data
