#include "models/evaluate/python_text.h"

#include <utf8proc.h>

#include "data/utf8.h"

namespace lockstep::models {
namespace {

bool IsSpace(uint32_t c) {
  return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
         c == 0x205f || c == 0x3000;
}

// Malformed bytes are characters of their own, which are no white space.
data::Utf8Character At(std::string_view text, size_t position) {
  const data::Utf8Character c = data::DecodeUtf8(text, position);
  return c.length > 0 ? c : data::Utf8Character{0xfffd, 1};
}

}  // namespace

std::string_view StripRight(std::string_view text) {
  size_t end = 0;
  for (size_t i = 0; i < text.size();) {
    const data::Utf8Character c = At(text, i);
    i += static_cast<size_t>(c.length);
    if (!IsSpace(c.code_point)) end = i;
  }
  return text.substr(0, end);
}

std::string_view Strip(std::string_view text) {
  text = StripRight(text);
  while (!text.empty()) {
    const data::Utf8Character c = At(text, 0);
    if (!IsSpace(c.code_point)) break;
    text.remove_prefix(static_cast<size_t>(c.length));
  }
  return text;
}

std::string Capitalize(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const data::Utf8Character c = At(text, i);
    const auto code = static_cast<utf8proc_int32_t>(c.code_point);
    const auto changed = i == 0 ? utf8proc_totitle(code) : utf8proc_tolower(code);
    data::AppendUtf8(static_cast<uint32_t>(changed), &out);
    i += static_cast<size_t>(c.length);
  }
  return out;
}

std::string Replace(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  while (true) {
    const size_t at = text.find(from);
    out += text.substr(0, at);
    if (at == std::string_view::npos) return out;
    out += to;
    text.remove_prefix(at + from.size());
  }
}

int64_t CountWords(std::string_view text) {
  int64_t words = 1;
  bool before = false;
  for (size_t i = 0; i < text.size();) {
    const data::Utf8Character c = At(text, i);
    const bool space = IsSpace(c.code_point);
    words += space && !before;
    before = space;
    i += static_cast<size_t>(c.length);
  }
  return words;
}

}  // namespace lockstep::models
