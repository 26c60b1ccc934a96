#include "data/chat/text.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "data/chat/budget.h"
#include "data/utf8.h"

namespace lockstep::data::chat {
namespace {

utf8proc_category_t Category(uint32_t code) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

bool HasCase(uint32_t code) {
  const auto category = Category(code);
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LT;
}

bool IsPrintable(uint32_t code) {
  const auto category = Category(code);  // ZS and what follows are separators and controls
  return code == ' ' || (category != UTF8PROC_CATEGORY_CN && category < UTF8PROC_CATEGORY_ZS);
}

bool IsLineEnd(uint32_t code) {
  return (code >= 0x0a && code <= 0x0d) || (code >= 0x1c && code <= 0x1e) || code == 0x85 ||
         code == 0x2028 || code == 0x2029;
}

// Calls visit(code point, begin, end) for each character.
template <class Visit>
void ForEach(std::string_view text, Visit visit) {
  TextWork(text.size());
  for (size_t i = 0; i < text.size();) {
    const Utf8Character character = DecodeUtf8(text, i);
    const size_t end = i + static_cast<size_t>(character.length);
    visit(character.code_point, i, end);
    i = end;
  }
}

std::vector<std::string> SplitAtSpace(std::string_view text, int64_t most, bool from_right) {
  std::vector<std::pair<size_t, size_t>> words;
  bool inside = false;
  ForEach(text, [&](uint32_t code, size_t begin, size_t end) {
    const bool was_inside = std::exchange(inside, !IsSpace(code));
    if (inside && !was_inside) words.emplace_back(begin, end);
    if (inside) words.back().second = end;
  });
  if (most >= 0 && words.size() > static_cast<size_t>(most)) {
    // The words that are not cut apart, with what is around them.
    const auto cuts = static_cast<std::ptrdiff_t>(most);
    if (from_right) {
      words.erase(words.begin(), words.end() - cuts - 1);
      words.front().first = 0;
    } else {
      words.resize(static_cast<size_t>(cuts) + 1);
      words.back().second = text.size();
    }
  }
  std::vector<std::string> parts;
  for (const auto& [begin, end] : words) parts.emplace_back(text.substr(begin, end - begin));
  return parts;
}

}  // namespace

bool IsSpace(uint32_t code) {
  return (code >= 0x09 && code <= 0x0d) || (code >= 0x1c && code <= 0x20) || code == 0x85 ||
         code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
         code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

bool IsLetter(uint32_t code) {
  const auto category = Category(code);
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool IsDecimal(uint32_t code) { return Category(code) == UTF8PROC_CATEGORY_ND; }

bool IsDigit(uint32_t code) {
  return IsDecimal(code) || code == 0xb2 || code == 0xb3 || code == 0xb9 || code == 0x2070 ||
         (code >= 0x2074 && code <= 0x2079) || (code >= 0x2080 && code <= 0x2089);
}

bool IsCased(std::string_view text, bool upper) {
  bool found = false;
  for (const uint32_t code : CodePoints(text)) {
    if (!HasCase(code)) continue;
    if ((Category(code) == UTF8PROC_CATEGORY_LU) != upper || Category(code) == UTF8PROC_CATEGORY_LT)
      return false;
    found = true;
  }
  return found;
}

std::vector<uint32_t> CodePoints(std::string_view text) {
  std::vector<uint32_t> codes;
  ForEach(text, [&](uint32_t code, size_t, size_t) { codes.push_back(code); });
  return codes;
}

std::vector<std::string> Characters(std::string_view text) {
  Work(text.size());
  std::vector<std::string> characters;
  ForEach(text, [&](uint32_t, size_t begin, size_t end) {
    characters.emplace_back(text.substr(begin, end - begin));
  });
  return characters;
}

std::string Recase(std::string_view text, Case to) {
  const bool upper = to == Case::kUpper || to == Case::kTitleWords;
  std::string out;
  bool first = to != Case::kLower;  // of a word
  for (const uint32_t code : CodePoints(text)) {
    const auto character = static_cast<utf8proc_int32_t>(code);
    if (first && code == 0xdf) {
      out += upper ? "SS" : "Ss";
    } else {
      AppendUtf8(static_cast<uint32_t>(!first  ? utf8proc_tolower(character)
                                       : upper ? utf8proc_toupper(character)
                                               : utf8proc_totitle(character)),
                 &out);
    }
    if (to == Case::kCapitalize) first = false;
    if (to == Case::kTitle) first = !HasCase(code);
    if (to == Case::kTitleWords) {
      first = IsSpace(code) || (code != 0 && code < 0x80 && std::strchr("-({[<", character));
    }
  }
  return out;
}

std::string_view Strip(std::string_view text, const std::optional<std::string>& set, bool left,
                       bool right) {
  const std::vector<uint32_t> codes = set ? CodePoints(*set) : std::vector<uint32_t>();
  const auto strips = [&](size_t position) {
    const uint32_t code = DecodeUtf8(text, position).code_point;
    Work(codes.size() / 64);
    return set ? std::ranges::find(codes, code) != codes.end() : IsSpace(code);
  };
  TextWork(text.size());
  while (left && !text.empty() && strips(0)) {
    text.remove_prefix(static_cast<size_t>(DecodeUtf8(text, 0).length));
  }
  while (right && !text.empty()) {
    size_t begin = text.size() - 1;
    while ((static_cast<uint8_t>(text[begin]) & 0xc0) == 0x80) --begin;
    if (!strips(begin)) break;
    text.remove_suffix(text.size() - begin);
  }
  return text;
}

std::vector<std::string> Split(std::string_view text, const std::optional<std::string>& separator,
                               int64_t most, bool from_right) {
  if (!separator) return SplitAtSpace(text, most, from_right);
  TextWork(text.size());
  if (separator->empty()) Fail("empty separator");
  std::vector<std::string> parts;
  while (most < 0 || static_cast<int64_t>(parts.size()) < most) {
    const size_t at = from_right ? text.rfind(*separator) : text.find(*separator);
    if (at == std::string_view::npos) break;
    const size_t after = at + separator->size();
    parts.emplace_back(from_right ? text.substr(after) : text.substr(0, at));
    text = from_right ? text.substr(0, at) : text.substr(after);
  }
  parts.emplace_back(text);
  if (from_right) std::ranges::reverse(parts);
  return parts;
}

std::vector<std::string> SplitLines(std::string_view text, bool keep_ends) {
  std::vector<std::string> lines;
  size_t line = 0;
  ForEach(text, [&](uint32_t code, size_t begin, size_t end) {
    if (code == '\n' && begin > 0 && text[begin - 1] == '\r') {  // \r\n is one
      line = end;
      if (keep_ends) lines.back() += '\n';
    } else if (IsLineEnd(code)) {
      lines.emplace_back(text.substr(line, (keep_ends ? end : begin) - line));
      line = end;
    }
  });
  if (line < text.size()) lines.emplace_back(text.substr(line));
  return lines;
}

std::string Replace(std::string_view text, std::string_view old, std::string_view by,
                    int64_t most) {
  TextWork(text.size());
  std::string out;
  size_t from = 0;  // what is before it is in out
  for (size_t at = 0; most != 0; --most) {
    at = text.find(old, at);
    if (at == std::string_view::npos) break;
    out.append(text, from, at - from).append(by);
    RequireTextFits(out.size());
    TextWork(by.size());
    from = at + old.size();
    if (old.empty() && at == text.size()) break;
    // An empty text is before each character, and at the end.
    at = old.empty() ? at + static_cast<size_t>(DecodeUtf8(text, at).length) : from;
  }
  return out.append(text.substr(from));
}

std::string ReprText(std::string_view text) {
  const bool single = text.find('\'') == text.npos || text.find('"') != text.npos;
  const char quote = single ? '\'' : '"';
  std::string out(1, quote);
  for (const uint32_t code : CodePoints(text)) {
    char escape[12] = "";
    if (code == '\n' || code == '\r' || code == '\t') {
      std::snprintf(escape, sizeof(escape), "\\%c", code == '\n' ? 'n' : code == '\r' ? 'r' : 't');
    } else if (code == '\\' || code == static_cast<uint32_t>(quote)) {
      std::snprintf(escape, sizeof(escape), "\\%c", static_cast<char>(code));
    } else if (!IsPrintable(code)) {
      const char* format = code < 0x100 ? "\\x%02x" : code < 0x10000 ? "\\u%04x" : "\\U%08x";
      std::snprintf(escape, sizeof(escape), format, static_cast<unsigned>(code));
    } else {
      AppendUtf8(code, &out);
    }
    out += escape;
  }
  return out + quote;
}

}  // namespace lockstep::data::chat
