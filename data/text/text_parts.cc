#include "data/text/text_parts.h"

#include <cstdint>
#include <vector>

#include "core/error.h"
#include "data/tokenizer/character_class.h"
#include "data/utf8.h"

namespace lockstep::data {
namespace {

bool IsSpace(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

// The class of the character that begins at `at`; 0 if that is malformed.
CharacterClass ClassAt(std::string_view text, size_t at) {
  const Utf8Character c = DecodeUtf8(text, at);
  return c.length == 0 ? CharacterClass{0} : CharacterTable::Get().Of(c.code_point);
}

// The class of the character that ends at `end` > 0; kSpace, which allows no cut, if that is
// malformed.
CharacterClass ClassBefore(std::string_view text, size_t end) {
  size_t begin = end - 1;
  while (begin > 0 && end - begin < 4 && (static_cast<uint8_t>(text[begin]) & 0xc0) == 0x80) {
    --begin;
  }
  const Utf8Character c = DecodeUtf8(text, begin);
  return begin + static_cast<size_t>(c.length) == end ? CharacterTable::Get().Of(c.code_point)
                                                      : kSpace;
}

bool MayCut(std::string_view text, size_t at) {
  if (IsSpace(text[at])) return (ClassBefore(text, at) & (kLetter | kNumber)) != 0;
  return text[at - 1] == '\n' && at > 1 && (ClassBefore(text, at - 1) & kSpace) == 0 &&
         (ClassAt(text, at) & kLetter) != 0;
}

// Whether the parts of one text have the ids of the whole, wherever it may be cut.
bool EncodesInParts(const Tokenizer& tokenizer, std::string_view text) try {
  const std::vector<int32_t> whole = tokenizer.Encode(text);
  for (size_t cut = 0; (cut = FindTextCut(text, cut + 1, text.size())) != std::string_view::npos;) {
    std::vector<int32_t> parts = tokenizer.Encode(text.substr(0, cut));
    tokenizer.EncodeRestTo(text.substr(cut), &parts);
    if (parts != whole) return false;
  }
  return true;
} catch (const InputError&) {  // the vocabulary lacks a character of it
  return true;
}

}  // namespace

size_t FindTextCut(std::string_view text, size_t from, size_t to) {
  for (size_t at = from > 0 ? from : 1; at < to; ++at) {
    if ((IsSpace(text[at]) || text[at - 1] == '\n') && MayCut(text, at)) return at;
  }
  return std::string_view::npos;
}

bool EncodesInParts(const Tokenizer& tokenizer) {
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {  // some tokens are several words
    const std::string token = tokenizer.TokenText(id);
    if (FindTextCut(token, 1, token.size()) != std::string_view::npos) return false;
  }
  for (const char* left : {"the", "In THE", "don't", "\u00e9t\u00e9", "12345", "7", "\u4e2d\u6587",
                           "end.", "\u3002", ")", "x\u0301y", "\U0001F600"}) {
    for (const char* space : {" ", "\n", "\r\n", "\t", "  ", "\n\n", " \n ", "\n\n\n", "\n  "}) {
      for (const char* right :
           {"of", "The", "'s", "\u00e9", "12345", "\u4e2d", ".", "(", "/", "\u3000", ""}) {
        if (!EncodesInParts(tokenizer, StrCat("Say ", left, space, right, " and"))) return false;
      }
    }
  }
  return true;
}

}  // namespace lockstep::data
