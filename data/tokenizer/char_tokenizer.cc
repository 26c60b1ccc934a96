#include "data/tokenizer/char_tokenizer.h"

#include "core/error.h"
#include "core/io/json.h"
#include "data/tokenizer/bpe_json.h"
#include "data/tokenizer/tokenizer_json.h"
#include "data/utf8.h"

namespace lockstep::data {
namespace {

[[noreturn]] void ThrowMalformed(std::string_view text, size_t position) {
  throw InputError(StrCat("the text is not UTF-8: ", DescribeByte(text, position),
                          ". Convert the text (iconv -f latin1 -t utf-8), or use the byte "
                          "tokenizer, which takes any bytes (--data.tokenizer=byte)"));
}

}  // namespace

CharTokenizer::CharTokenizer(std::string_view text) {
  if (text.empty()) {
    throw InputError("a char tokenizer needs at least one character, and the text is empty");
  }
  for (size_t i = 0; i < text.size();) {
    const Utf8Character c = DecodeUtf8(text, i);
    if (c.length == 0) ThrowMalformed(text, i);
    if (c.code_point >= ids_.size()) ids_.resize(c.code_point + 1, -1);
    ids_[c.code_point] = 0;
    i += c.length;
  }
  for (uint32_t code = 0; code < ids_.size(); ++code) {
    if (ids_[code] < 0) continue;
    ids_[code] = static_cast<int32_t>(characters_.size());
    characters_.push_back(code);
  }
}

std::vector<int32_t> CharTokenizer::Encode(std::string_view text) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const Utf8Character c = DecodeUtf8(text, i);
    if (c.length == 0) ThrowMalformed(text, i);
    const int32_t id = c.code_point < ids_.size() ? ids_[c.code_point] : -1;
    if (id < 0) {
      throw InputError(
          StrCat("character ", DescribeCharacter(c.code_point), " at byte ", i,
                 " is not in the char tokenizer's vocabulary of ", vocab_size(),
                 " characters: remove it, or train a new model, on text that contains it or "
                 "with --data.tokenizer=byte, which takes any text"));
    }
    ids.push_back(id);
    i += c.length;
  }
  return ids;
}

std::string CharTokenizer::Decode(std::span<const int32_t> ids) const {
  std::string text;
  text.reserve(ids.size());
  for (const int32_t id : ids) {
    RequireTokenId(id, *this);
    AppendUtf8(characters_[id], &text);
  }
  return text;
}

std::string CharTokenizer::ToJson() const {
  OrderedJson vocabulary = OrderedJson::object();
  for (size_t id = 0; id < characters_.size(); ++id) {
    std::string character;
    AppendUtf8(characters_[id], &character);
    vocabulary[character] = id;
  }
  // A text with another character is an error there, too, since no token is called "<unk>".
  const OrderedJson model = {{"type", "WordLevel"}, {"vocab", vocabulary}, {"unk_token", "<unk>"}};
  const OrderedJson cut = {{"type", "Split"},
                           {"pattern", {{"Regex", R"([\s\S])"}}},
                           {"behavior", "Isolated"},
                           {"invert", false}};
  const OrderedJson json =
      TokenizerFileJson<OrderedJson>(model, OrderedJson::array(), nullptr, cut, {{"type", "Fuse"}});
  return json.dump(1) + "\n";
}

std::string CharTokenizer::ConfigJson() const { return kPlainConfig; }

}  // namespace lockstep::data
