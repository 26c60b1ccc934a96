#include "data/text/repair_utf8.h"

#include <cstddef>
#include <string_view>

#include "data/utf8.h"

namespace lockstep::data {
namespace {

// The length of the maximal part at `position`, where no well-formed character starts: the longest
// beginning of one, or a single byte.
size_t MalformedLength(std::string_view text, size_t position) {
  const auto byte = [&](size_t i) {
    return i < text.size() ? static_cast<uint8_t>(text[i]) : uint8_t{0};
  };
  const uint8_t lead = byte(position);
  if (lead < 0xc2 || lead > 0xf4) return 1;
  const uint8_t low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const uint8_t high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  const uint8_t second = byte(position + 1);
  if (lead < 0xe0 || second < low || second > high) return 1;
  const bool third_fits = (byte(position + 2) & 0xc0) == 0x80;
  return lead >= 0xf0 && third_fits ? 3 : 2;
}

}  // namespace

int64_t RepairUtf8(std::string* text) {
  size_t valid = ValidUtf8Prefix(*text);
  if (valid == text->size()) return 0;
  int64_t count = 0;
  std::string repaired;
  repaired.reserve(text->size() + text->size() / 8);
  std::string_view rest = *text;
  for (;;) {
    repaired += rest.substr(0, valid);
    if (valid == rest.size()) break;
    AppendUtf8(0xfffd, &repaired);
    ++count;
    rest.remove_prefix(valid + MalformedLength(rest, valid));
    valid = ValidUtf8Prefix(rest);
  }
  *text = std::move(repaired);
  return count;
}

}  // namespace lockstep::data
