#include "data/utf8.h"

#include <cstdio>
#include <cstring>

namespace lockstep::data {
namespace {

bool IsContinuation(uint8_t byte) { return (byte & 0xc0) == 0x80; }

}  // namespace

Utf8Character DecodeUtf8(std::string_view text, size_t position) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data()) + position;
  const size_t left = text.size() - position;
  const uint8_t first = bytes[0];
  if (first < 0x80) return {first, 1};
  const int length = first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
  if (length == 0 || left < static_cast<size_t>(length)) return {};
  uint32_t code = first & (0xff >> (length + 1));
  for (int i = 1; i < length; ++i) {
    if (!IsContinuation(bytes[i])) return {};
    code = code << 6 | (bytes[i] & 0x3f);
  }
  const bool overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  if (overlong || surrogate || code > 0x10ffff) return {};
  return {code, length};
}

size_t ValidUtf8Prefix(std::string_view text) {
  size_t position = 0;
  while (position < text.size()) {
    uint64_t eight;  // ASCII, as most text is
    if (text.size() - position >= sizeof(eight)) {
      std::memcpy(&eight, text.data() + position, sizeof(eight));
      if ((eight & 0x8080808080808080u) == 0) {
        position += sizeof(eight);
        continue;
      }
    }
    const int length = DecodeUtf8(text, position).length;
    if (length == 0) return position;
    position += length;
  }
  return position;
}

int64_t CountUtf8(std::string_view text) {
  int64_t count = 0;
  for (const char c : text) count += !IsContinuation(static_cast<uint8_t>(c));
  return count;
}

size_t Utf8Offset(std::string_view text, int64_t index) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (IsContinuation(static_cast<uint8_t>(text[i]))) continue;
    if (index-- == 0) return i;
  }
  return text.size();
}

void AppendUtf8(uint32_t code, std::string* text) {
  if (code < 0x80) {
    text->push_back(static_cast<char>(code));
    return;
  }
  const int tail = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  const uint32_t lead = tail == 1 ? 0xc0 : tail == 2 ? 0xe0 : 0xf0;
  text->push_back(static_cast<char>(lead | code >> (6 * tail)));
  for (int i = tail - 1; i >= 0; --i) {
    text->push_back(static_cast<char>(0x80 | (code >> (6 * i) & 0x3f)));
  }
}

std::string DescribeByte(std::string_view text, size_t position) {
  char buffer[48];
  std::snprintf(buffer, sizeof(buffer), "byte %zu is 0x%x", position,
                static_cast<unsigned>(static_cast<uint8_t>(text[position])));
  return buffer;
}

std::string DescribeCharacter(uint32_t code) {
  char buffer[16];
  std::snprintf(buffer, sizeof(buffer), "U+%04X", static_cast<unsigned>(code));
  const bool prints = (code > 0x20 && code < 0x7f) || code > 0xa0;
  if (!prints) return buffer;
  std::string text = "'";
  AppendUtf8(code, &text);
  return text + "' (" + buffer + ")";
}

}  // namespace lockstep::data
