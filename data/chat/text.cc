#include "data/chat/text.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdio>

#include "data/chat/budget.h"
#include "data/utf8.h"

namespace lockstep::data::chat {
namespace {

utf8proc_category_t Category(uint32_t code) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

uint32_t ToLower(uint32_t code) {
  return static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code)));
}

constexpr uint32_t kSharpS = 0xdf;

void AppendMapped(uint32_t code, utf8proc_int32_t (*map)(utf8proc_int32_t),
                  std::string_view sharp_s, std::string* out) {
  if (code == kSharpS) {
    out->append(sharp_s);
  } else {
    AppendUtf8(static_cast<uint32_t>(map(static_cast<utf8proc_int32_t>(code))), out);
  }
}

bool IsLineEnd(uint32_t code) {
  return (code >= 0x0a && code <= 0x0d) || (code >= 0x1c && code <= 0x1e) || code == 0x85 ||
         code == 0x2028 || code == 0x2029;
}

// The byte ranges of maximal runs without white space.
std::vector<std::pair<size_t, size_t>> Words(std::string_view text) {
  std::vector<std::pair<size_t, size_t>> words;
  bool inside = false;
  for (size_t i = 0; i < text.size();) {
    const Utf8Character character = DecodeUtf8(text, i);
    const size_t next = i + static_cast<size_t>(character.length);
    if (IsSpace(character.code_point)) {
      inside = false;
    } else if (inside) {
      words.back().second = next;
    } else {
      words.emplace_back(i, next);
      inside = true;
    }
    i = next;
  }
  return words;
}

std::vector<std::string> SplitAtSpace(std::string_view text, int64_t most, bool from_right) {
  const auto words = Words(text);
  std::vector<std::string> parts;
  const size_t cuts = most < 0 ? words.size() : static_cast<size_t>(most);
  if (words.size() <= cuts || words.empty()) {
    for (const auto& [begin, end] : words) parts.emplace_back(text.substr(begin, end - begin));
  } else if (from_right) {
    const size_t kept = words.size() - cuts;  // the words of the first part, which keeps its start
    parts.emplace_back(text.substr(0, words[kept - 1].second));
    for (size_t i = kept; i < words.size(); ++i) {
      parts.emplace_back(text.substr(words[i].first, words[i].second - words[i].first));
    }
  } else {
    for (size_t i = 0; i < cuts; ++i) {
      parts.emplace_back(text.substr(words[i].first, words[i].second - words[i].first));
    }
    parts.emplace_back(text.substr(words[cuts].first));
  }
  return parts;
}

}  // namespace

bool IsSpace(uint32_t code) {
  return (code >= 0x09 && code <= 0x0d) || (code >= 0x1c && code <= 0x20) || code == 0x85 ||
         code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
         code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

bool IsPrintable(uint32_t code) {
  switch (Category(code)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return code == ' ';
    default:
      return true;
  }
}

bool IsLetter(uint32_t code) {
  const auto category = Category(code);
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}
bool IsDecimal(uint32_t code) { return Category(code) == UTF8PROC_CATEGORY_ND; }
bool IsLower(uint32_t code) { return Category(code) == UTF8PROC_CATEGORY_LL; }
bool IsUpper(uint32_t code) { return Category(code) == UTF8PROC_CATEGORY_LU; }

bool IsDigit(uint32_t code) {
  return IsDecimal(code) || code == 0xb2 || code == 0xb3 || code == 0xb9 || code == 0x2070 ||
         (code >= 0x2074 && code <= 0x2079) || (code >= 0x2080 && code <= 0x2089);
}

bool AllCased(std::string_view text, bool (*wanted)(uint32_t), bool (*other)(uint32_t)) {
  bool found = false;
  for (const uint32_t code : CodePoints(text)) {
    if (other(code) || Category(code) == UTF8PROC_CATEGORY_LT) return false;
    found = found || wanted(code);
  }
  return found;
}

std::vector<uint32_t> CodePoints(std::string_view text) {
  TextWork(text.size());
  std::vector<uint32_t> codes;
  for (size_t i = 0; i < text.size();) {
    const Utf8Character character = DecodeUtf8(text, i);
    codes.push_back(character.code_point);
    i += static_cast<size_t>(character.length);
  }
  return codes;
}

std::string FromCodePoints(const std::vector<uint32_t>& codes) {
  std::string text;
  for (const uint32_t code : codes) AppendUtf8(code, &text);
  return text;
}

std::vector<std::string> Characters(std::string_view text) {
  Work(text.size());
  std::vector<std::string> characters;
  for (size_t i = 0; i < text.size();) {
    const auto length = static_cast<size_t>(DecodeUtf8(text, i).length);
    characters.emplace_back(text.substr(i, length));
    i += length;
  }
  return characters;
}

std::string Lower(std::string_view text) {
  std::string lower;
  for (const uint32_t code : CodePoints(text)) AppendUtf8(ToLower(code), &lower);
  return lower;
}

std::string Upper(std::string_view text) {
  std::string upper;
  for (const uint32_t code : CodePoints(text)) AppendMapped(code, utf8proc_toupper, "SS", &upper);
  return upper;
}

std::string Capitalize(std::string_view text) {
  std::string out;
  for (const uint32_t code : CodePoints(text)) {
    if (out.empty()) {
      AppendMapped(code, utf8proc_totitle, "Ss", &out);
    } else {
      AppendUtf8(ToLower(code), &out);
    }
  }
  return out;
}

std::string Title(std::string_view text) {
  std::string out;
  bool inside = false;  // a word
  for (const uint32_t code : CodePoints(text)) {
    if (inside) {
      AppendUtf8(ToLower(code), &out);
    } else {
      AppendMapped(code, utf8proc_totitle, "Ss", &out);
    }
    inside = IsLower(code) || IsUpper(code) || Category(code) == UTF8PROC_CATEGORY_LT;
  }
  return out;
}

std::string TitleWords(std::string_view text) {
  std::string out;
  bool inside = false;  // a word
  for (const uint32_t code : CodePoints(text)) {
    const bool separates =
        IsSpace(code) ||
        (code < 0x80 && code != 0 &&
         std::string_view("-({[<").find(static_cast<char>(code)) != std::string_view::npos);
    if (inside) {
      AppendUtf8(ToLower(code), &out);
    } else {
      AppendMapped(code, utf8proc_toupper, "SS", &out);
    }
    inside = !separates;
  }
  return out;
}

std::string_view Strip(std::string_view text, const std::optional<std::string>& set, bool left,
                       bool right) {
  const std::vector<uint32_t> codes = set ? CodePoints(*set) : std::vector<uint32_t>();
  const auto strips = [&](uint32_t code) {
    return set ? std::ranges::find(codes, code) != codes.end() : IsSpace(code);
  };
  TextWork(text.size());
  size_t removed = 0;
  while (left && !text.empty()) {
    const Utf8Character first = DecodeUtf8(text, 0);
    if (!strips(first.code_point)) break;
    text.remove_prefix(static_cast<size_t>(first.length));
    ++removed;
  }
  while (right && !text.empty()) {
    size_t begin = text.size() - 1;
    while ((static_cast<uint8_t>(text[begin]) & 0xc0) == 0x80) --begin;
    if (!strips(DecodeUtf8(text, begin).code_point)) break;
    text.remove_suffix(text.size() - begin);
    ++removed;
  }
  Work(removed * codes.size() / 64);
  return text;
}

std::vector<std::string> Split(std::string_view text, const std::optional<std::string>& separator,
                               int64_t most, bool from_right) {
  TextWork(text.size());
  if (!separator) return SplitAtSpace(text, most, from_right);
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
  TextWork(text.size());
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    const Utf8Character character = DecodeUtf8(text, i);
    const size_t end = i;
    i += static_cast<size_t>(character.length);
    if (!IsLineEnd(character.code_point)) continue;
    if (character.code_point == '\r' && i < text.size() && text[i] == '\n') ++i;
    lines.emplace_back(text.substr(begin, (keep_ends ? i : end) - begin));
    begin = i;
  }
  if (begin < text.size()) lines.emplace_back(text.substr(begin));
  return lines;
}

std::string Replace(std::string_view text, std::string_view old, std::string_view by,
                    int64_t most) {
  TextWork(text.size());
  std::string out;
  int64_t done = 0;
  size_t from = 0;  // what is before it is in out
  for (size_t at = 0; most < 0 || done < most; ++done) {
    at = text.find(old, at);
    if (at == std::string_view::npos) break;
    out.append(text, from, at - from);
    out.append(by);
    RequireTextFits(out.size());
    TextWork(by.size());
    from = at + old.size();
    if (!old.empty()) {
      at = from;
    } else if (at == text.size()) {
      break;
    } else {  // an empty text is before each character, and at the end
      at += static_cast<size_t>(DecodeUtf8(text, at).length);
    }
  }
  return out.append(text.substr(from));
}

std::string Indent(std::string_view text, std::string_view indention, bool first, bool blank) {
  const std::vector<std::string> lines = SplitLines(std::string(text) + "\n");
  std::string out(first ? indention : "");
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += '\n';
    if (i > 0 && (blank || !lines[i].empty())) out.append(indention);
    out += lines[i];
    RequireTextFits(out.size());
  }
  return out;
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
    }
    if (escape[0] != '\0') {
      out += escape;
    } else {
      AppendUtf8(code, &out);
    }
  }
  return out + quote;
}

}  // namespace lockstep::data::chat
