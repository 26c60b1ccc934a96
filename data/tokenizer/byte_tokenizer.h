// One token per byte, for any data.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/tokenizer.h"

namespace lockstep::data {

// The id of a byte is its value.
class ByteTokenizer : public Tokenizer {
 public:
  std::vector<int32_t> Encode(std::string_view text) const override;
  std::string Decode(std::span<const int32_t> ids) const override;
  int64_t vocab_size() const override { return 256; }
  std::string_view name() const override { return "byte"; }
  std::string ToJson() const override;
  std::string ConfigJson() const override;
};

}  // namespace lockstep::data
