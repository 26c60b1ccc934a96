#include "data/tokenizer/byte_tokenizer.h"

#include <nlohmann/json.hpp>

#include "core/io/json.h"
#include "data/tokenizer/tokenizer_json.h"

namespace lockstep::data {

std::vector<int32_t> ByteTokenizer::Encode(std::string_view text) const {
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
  return {bytes, bytes + text.size()};
}

std::string ByteTokenizer::Decode(std::span<const int32_t> ids) const {
  std::string text;
  text.reserve(ids.size());
  for (const int32_t id : ids) {
    RequireTokenId(id, *this);
    text.push_back(static_cast<char>(id));
  }
  return text;
}

std::string ByteTokenizer::ToJson() const { return DumpJson(TokenizerJson(*this), 1) + "\n"; }

}  // namespace lockstep::data
