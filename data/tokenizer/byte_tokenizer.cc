#include "data/tokenizer/byte_tokenizer.h"

#include "core/io/json.h"
#include "data/tokenizer/bpe_json.h"
#include "data/tokenizer/byte_alphabet.h"
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

std::string ByteTokenizer::ToJson() const {
  OrderedJson vocabulary = OrderedJson::object();
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary[BytesToPrintable(std::string(1, static_cast<char>(byte)))] = byte;
  }
  OrderedJson whole = ByteLevelJson<OrderedJson>(/*add_prefix_space=*/false);
  whole["use_regex"] = false;
  return (ByteLevelBpeJson<OrderedJson>(vocabulary, OrderedJson::array(), OrderedJson::array(),
                                        nullptr, whole, whole))
             .dump(1) +
         "\n";
}

std::string ByteTokenizer::ConfigJson() const { return kPlainConfig; }

}  // namespace lockstep::data
