// UTF-8, as the Unicode standard defines it: no overlong forms, no surrogates, nothing above
// U+10FFFF.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::data {

struct Utf8Character {
  uint32_t code_point = 0;
  int length = 0;  // bytes, 1 to 4, or 0 if no well-formed character starts here
};

// The character that starts at text[position]; position < text.size().
Utf8Character DecodeUtf8(std::string_view text, size_t position);

// The position of the first malformed byte; text.size() if there is none.
size_t ValidUtf8Prefix(std::string_view text);

// The number of characters in well-formed text.
int64_t CountUtf8(std::string_view text);

// The byte position of character `index` in well-formed text; text.size() for CountUtf8(text).
size_t Utf8Offset(std::string_view text, int64_t index);

void AppendUtf8(uint32_t code_point, std::string* text);

// For messages: byte 17 is 0xff.
std::string DescribeByte(std::string_view text, size_t position);

// For messages: 'x' (U+0078), or only U+0007 if the character is not printable.
std::string DescribeCharacter(uint32_t code_point);

}  // namespace lockstep::data
