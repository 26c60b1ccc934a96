// Classes of Unicode characters, as the patterns of tokenizers use them.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace lockstep::data {

// A set of classes; the first five are disjoint.
using CharacterClass = uint8_t;
inline constexpr CharacterClass kUpper = 1;        // \p{Lu}, \p{Lt}
inline constexpr CharacterClass kLower = 2;        // \p{Ll}
inline constexpr CharacterClass kOtherLetter = 4;  // \p{Lm}, \p{Lo}
inline constexpr CharacterClass kMark = 8;         // \p{M}
inline constexpr CharacterClass kNumber = 16;      // \p{N}
inline constexpr CharacterClass kSpace = 32;       // \s: the property White_Space
inline constexpr CharacterClass kNewline = 64;     // [\r\n], which are kSpace, too
inline constexpr CharacterClass kWord = 128;       // \w of Rust's regex
inline constexpr CharacterClass kLetter = kUpper | kLower | kOtherLetter;

// The classes of all code points of Unicode 16: utf8proc's, and those that it does not know yet.
class CharacterTable {
 public:
  static const CharacterTable& Get();

  CharacterClass Of(uint32_t code_point) const {
    return pages_[index_[code_point >> 8]][code_point & 0xff];
  }
  CharacterClass OfAscii(uint8_t byte) const { return pages_[0][byte]; }

 private:
  CharacterTable();

  std::array<uint16_t, 0x1100> index_;
  std::vector<std::array<CharacterClass, 256>> pages_;
};

// The code point of the character that starts at `text`, which must be well-formed UTF-8, and its
// length in bytes.
inline uint32_t DecodeValidUtf8(const char* text, int* length) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(text);
  const uint32_t first = bytes[0];
  if (first < 0x80) return *length = 1, first;
  if (first < 0xe0) return *length = 2, (first & 0x1f) << 6 | (bytes[1] & 0x3f);
  if (first < 0xf0) {
    return *length = 3, (first & 0xf) << 12 | (bytes[1] & 0x3f) << 6 | (bytes[2] & 0x3f);
  }
  return *length = 4,
         (first & 7) << 18 | (bytes[1] & 0x3f) << 12 | (bytes[2] & 0x3f) << 6 | (bytes[3] & 0x3f);
}

// Code points with their category: "Lu", "Lo", "Mn" ...
struct NewerRange {
  uint32_t first, last;
  std::string_view category;
};

// The letters, marks, numbers, punctuation and symbols that came to Unicode after version 14, up to
// 16: what PCRE2 10.42 does not know.
std::span<const NewerRange> CharactersNewerThanUnicode14();

}  // namespace lockstep::data
