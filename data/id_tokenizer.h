// Token ids as they are, where their tokenizer is not known: "464 2068 7586".
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer.h"

namespace lockstep::data {

// Reads numbers with white space between them, and writes each with a space behind it. It stands in
// for a tokenizer where something is shown to people; checkpoints have none then.
class IdTokenizer : public Tokenizer {
 public:
  explicit IdTokenizer(int64_t vocab_size) : vocab_size_(vocab_size) {}

  std::vector<int32_t> Encode(std::string_view text) const override;
  std::string Decode(std::span<const int32_t> ids) const override;
  int64_t vocab_size() const override { return vocab_size_; }
  std::string_view name() const override { return "ids"; }
  // GPT-2's, for a vocabulary of its size, padded to a multiple of 128 or not.
  std::optional<int32_t> end_of_text() const override;
  // Throws ArgumentError: there is nothing to write.
  std::string ToJson() const override;

 private:
  int64_t vocab_size_;
};

}  // namespace lockstep::data
