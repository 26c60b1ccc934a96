#include "data/text/repair_utf8.h"

#include <charconv>
#include <cstddef>
#include <string_view>
#include <system_error>

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

// The UTF-16 unit that "\uXXXX" at `position` writes, or -1.
int EscapedUnit(std::string_view line, size_t position) {
  if (position + 6 > line.size() || line[position] != '\\' || line[position + 1] != 'u') return -1;
  unsigned unit = 0;
  const char* begin = line.data() + position + 2;
  const auto [end, error] = std::from_chars(begin, begin + 4, unit, 16);
  return error == std::errc() && end == begin + 4 ? static_cast<int>(unit) : -1;
}

int64_t RepairSurrogates(std::string* line) {
  int64_t count = 0;
  for (size_t i = line->find('\\'); i != std::string::npos; i = line->find('\\', i)) {
    const int unit = EscapedUnit(*line, i);
    if (unit < 0xd800 || unit > 0xdfff) {
      i += 2;  // an escaped backslash begins no escape
      continue;
    }
    const int next = EscapedUnit(*line, i + 6);
    if (unit < 0xdc00 && next >= 0xdc00 && next <= 0xdfff) {
      i += 12;
      continue;
    }
    line->replace(i, 6, "\\ufffd");
    ++count;
    i += 6;
  }
  return count;
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

int64_t RepairJson(std::string* line) { return RepairUtf8(line) + RepairSurrogates(line); }

}  // namespace lockstep::data
