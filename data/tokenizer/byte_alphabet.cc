#include "data/tokenizer/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "data/utf8.h"

namespace lockstep::data {
namespace {

bool StandsForItself(int byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

constexpr uint32_t kLimit = 0x144;  // all characters are below

struct Alphabet {
  std::array<uint32_t, 256> character;  // of a byte
  std::array<int16_t, kLimit> byte{};   // of a character, or -1
  Alphabet() {
    byte.fill(-1);
    uint32_t next = 0x100;
    for (int b = 0; b < 256; ++b) {
      character[b] = StandsForItself(b) ? static_cast<uint32_t>(b) : next++;
      byte[character[b]] = static_cast<int16_t>(b);
    }
  }
};

const Alphabet& GetAlphabet() {
  static const Alphabet alphabet;
  return alphabet;
}

}  // namespace

std::string BytesToPrintable(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) AppendUtf8(GetAlphabet().character[static_cast<uint8_t>(c)], &text);
  return text;
}

std::optional<std::string> PrintableToBytes(std::string_view text) {
  std::string bytes;
  for (size_t i = 0; i < text.size();) {
    const Utf8Character c = DecodeUtf8(text, i);
    if (c.length == 0 || c.code_point >= kLimit) return std::nullopt;
    const int16_t byte = GetAlphabet().byte[c.code_point];
    if (byte < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(byte));
    i += static_cast<size_t>(c.length);
  }
  return bytes;
}

}  // namespace lockstep::data
