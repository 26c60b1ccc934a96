#include "models/evaluate/answer_filters.h"

#include <algorithm>

#include "models/evaluate/python_text.h"

namespace lockstep::models {
namespace {

constexpr const char* kNone = "[invalid]";

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

size_t RunOf(std::string_view text, size_t begin, std::string_view characters) {
  return std::min(text.find_first_not_of(characters, begin), text.size());
}

// What the harness removes by its regexes, in this order: ",", "\$", "(?s).*#### ", "\.$".
std::string Normalized(std::string_view text) {
  std::string out = Replace(Replace(text, ",", ""), "$", "");
  if (const size_t mark = out.rfind("#### "); mark != std::string::npos) out.erase(0, mark + 5);
  // $ matches before a newline at the end, too.
  const size_t end = out.size() - (out.ends_with('\n') ? 1 : 0);
  if (end > 0 && out[end - 1] == '.') out.erase(end - 1, 1);
  std::ranges::transform(out, out.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c; });
  return out;
}

}  // namespace

// #### (\-?[0-9\.\,]+)
std::string StrictAnswer(std::string_view text) {
  constexpr std::string_view kMark = "#### ", kNumber = "0123456789.,";
  for (size_t at = text.find(kMark); at != text.npos; at = text.find(kMark, at + 1)) {
    const size_t begin = at + kMark.size();
    const size_t digits = begin + (begin < text.size() && text[begin] == '-' ? 1 : 0);
    const size_t end = RunOf(text, digits, kNumber);
    if (end > digits) return std::string(text.substr(begin, end - begin));
  }
  return kNone;
}

// The last match of (-?[$0-9.,]{2,})|(-?[0-9]+)
std::string FlexibleAnswer(std::string_view text) {
  std::string_view last;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at + (text[at] == '-' ? 1 : 0);
    const size_t end = RunOf(text, begin, "$0123456789.,");
    if (end >= begin + 2 || (end == begin + 1 && IsDigit(text[begin]))) {
      last = text.substr(at, end - at);
      at = end;
    } else {
      ++at;
    }
  }
  return last.empty() ? kNone : std::string(last);
}

bool IsExactMatch(std::string_view answer, std::string_view reference) {
  return Normalized(answer) == Normalized(reference);
}

}  // namespace lockstep::models
