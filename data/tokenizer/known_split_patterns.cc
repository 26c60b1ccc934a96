// Matchers of well-known patterns, written by hand: they are some ten times as fast as PCRE2.
#include <algorithm>
#include <climits>

#include "core/error.h"
#include "data/tokenizer/character_class.h"
#include "data/tokenizer/split_pattern.h"

namespace lockstep::data {
namespace {

constexpr CharacterClass kNotOther = kSpace | kLetter | kNumber;

// Functions that take a position in the text and return where a part of a pattern that begins
// there ends. Those for parts that may fail return null.
class Scanner {
 public:
  explicit Scanner(std::string_view text)
      : end_(text.data() + text.size()), table_(CharacterTable::Get()) {}

  // The class of the character at p, and its length; 0 and 0 at the end of the text.
  CharacterClass At(const char* p, int* length) const {
    if (p == end_) return *length = 0, 0;
    const auto byte = static_cast<uint8_t>(*p);
    if (byte < 0x80) return *length = 1, table_.OfAscii(byte);
    return table_.Of(DecodeValidUtf8(p, length));
  }

  // [classes]*
  const char* Skip(const char* p, CharacterClass classes) const {
    for (int length; (At(p, &length) & classes) != 0;) p += length;
    return p;
  }

  // [^\s\p{L}\p{N}]*
  const char* SkipOther(const char* p) const {
    for (int length; (At(p, &length) & kNotOther) == 0 && length > 0;) p += length;
    return p;
  }

  // \P{N}*
  const char* SkipNonNumbers(const char* p) const {
    for (int length; (At(p, &length) & kNumber) == 0 && length > 0;) p += length;
    return p;
  }

  // [\r\n]* or [\r\n/]*
  const char* SkipNewlines(const char* p, bool slash) const {
    while (p != end_ && (*p == '\r' || *p == '\n' || (slash && *p == '/'))) ++p;
    return p;
  }

  // \p{N}{1,most}, where a number is at p.
  const char* Numbers(const char* p, int most) const {
    for (int length; most > 0 && (At(p, &length) & kNumber) != 0; --most) p += length;
    return p;
  }

  // 's|'t|'re|'ve|'m|'ll|'d; U+017F is also an s if case is ignored.
  const char* Contraction(const char* p, bool ignore_case) const {
    if (p == end_ || *p != '\'') return nullptr;
    const auto at = [&](int i) {
      const char c = end_ - p > i ? p[i] : '\0';
      return ignore_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    };
    switch (at(1)) {
      case 's':
      case 't':
      case 'm':
      case 'd':
        return p + 2;
      case 'r':
      case 'v':
        return at(2) == 'e' ? p + 3 : nullptr;
      case 'l':
        return at(2) == 'l' ? p + 3 : nullptr;
      case '\xc5':
        return ignore_case && at(2) == '\xbf' ? p + 3 : nullptr;
      default:
        return nullptr;
    }
  }

  // \s+(?!\S)|\s+, where white space is at p; before these \s*[\r\n]+ if `newlines`.
  const char* Space(const char* p, bool newlines) const {
    const char *last = p, *after_newline = nullptr, *q = p;
    for (int length;;) {
      const CharacterClass c = At(q, &length);
      if ((c & kSpace) == 0) break;
      last = q;
      q += length;
      if ((c & kNewline) != 0) after_newline = q;
    }
    if (newlines && after_newline != nullptr) return after_newline;
    return q == end_ || last == p ? q : last;
  }

 private:
  const char* end_;
  const CharacterTable& table_;
};

// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
struct Gpt2 {
  const char* Match(const Scanner& scan, const char* p) const {
    int length;
    CharacterClass c = scan.At(p, &length);
    if (const char* q = scan.Contraction(p, /*ignore_case=*/false)) return q;
    const char* q = p;
    if (*p == ' ') {
      c = scan.At(++q, &length);
      if (length == 0 || (c & kSpace) != 0) return scan.Space(p, /*newlines=*/false);
    }
    if ((c & kLetter) != 0) return scan.Skip(q + length, kLetter);
    if ((c & kNumber) != 0) return scan.Skip(q + length, kNumber);
    if ((c & kSpace) != 0) return scan.Space(p, /*newlines=*/false);
    return scan.SkipOther(q + length);
  }
};

// What the patterns after GPT-4's have in common once words are found:
// \p{N}{1,digits}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+, or [\r\n/]* with `slash`.
const char* AfterWords(const Scanner& scan, const char* p, int digits, bool slash) {
  int length;
  const CharacterClass c = scan.At(p, &length);
  if ((c & kNumber) != 0) return scan.Numbers(p, digits);
  const char* q = *p == ' ' ? p + 1 : p;
  const char* end = scan.SkipOther(q);
  if (end != q) return scan.SkipNewlines(end, slash);
  return scan.Space(p, /*newlines=*/true);
}

// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|, then AfterWords
struct Llama3 {
  int digits;

  const char* Match(const Scanner& scan, const char* p) const {
    if (const char* q = scan.Contraction(p, /*ignore_case=*/true)) return q;
    int length, next_length;
    const CharacterClass c = scan.At(p, &length);
    if ((c & kLetter) != 0) return scan.Skip(p + length, kLetter);
    if ((c & (kNewline | kNumber)) == 0 && (scan.At(p + length, &next_length) & kLetter) != 0) {
      return scan.Skip(p + length + next_length, kLetter);
    }
    return AfterWords(scan, p, digits, /*slash=*/false);
  }
};

// With U for [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] and L for [\p{Ll}\p{Lm}\p{Lo}\p{M}], and a
// contraction (?i:'s|'t|'re|'ve|'m|'ll|'d)? at the end of each alternative if `contractions`:
// [^\r\n\p{L}\p{N}]?U*L+|[^\r\n\p{L}\p{N}]?U+L*|, then AfterWords with a slash
struct Gpt4o {
  bool contractions;
  int digits;

  static constexpr CharacterClass kU = kUpper | kOtherLetter | kMark;
  static constexpr CharacterClass kL = kLower | kOtherLetter | kMark;

  // U*L+: where U* has taken all that L+ could match, it gives back the last character that is
  // both.
  static const char* UpperThenLower(const Scanner& scan, const char* p) {
    const char* after_both = nullptr;
    int length;
    for (CharacterClass c; ((c = scan.At(p, &length)) & kU) != 0;) {
      p += length;
      if ((c & kL) != 0) after_both = p;
    }
    return (scan.At(p, &length) & kL) != 0 ? scan.Skip(p + length, kL) : after_both;
  }

  // U+L*
  static const char* UpperMaybeLower(const Scanner& scan, const char* p) {
    const char* q = scan.Skip(p, kU);
    return q == p ? nullptr : scan.Skip(q, kL);
  }

  const char* Word(const Scanner& scan, const char* p) const {
    int length;
    const CharacterClass c = scan.At(p, &length);
    const bool prefix = (c & (kNewline | kLetter | kNumber)) == 0;
    const char* q = prefix ? UpperThenLower(scan, p + length) : nullptr;
    if (q == nullptr) q = UpperThenLower(scan, p);
    if (q == nullptr && prefix) q = UpperMaybeLower(scan, p + length);
    if (q == nullptr) q = UpperMaybeLower(scan, p);
    if (q == nullptr || !contractions) return q;
    const char* end = scan.Contraction(q, /*ignore_case=*/true);
    return end != nullptr ? end : q;
  }

  const char* Match(const Scanner& scan, const char* p) const {
    const char* q = Word(scan, p);
    return q != nullptr ? q : AfterWords(scan, p, digits, /*slash=*/true);
  }
};

template <typename Matcher>
class HandWritten : public SplitPattern {
 public:
  explicit HandWritten(Matcher matcher) : matcher_(matcher) {}

  void Cut(std::string_view text, const Sink& sink) const override {
    const Scanner scan(text);
    const char* const end = text.data() + text.size();
    for (const char* p = text.data(); p != end;) {
      const char* q = matcher_.Match(scan, p);
      sink(std::string_view(p, static_cast<size_t>(q - p)), true);
      p = q;
    }
  }

 private:
  Matcher matcher_;
};

// \p{N}{1,most}, with gaps between matches
class Numbers : public SplitPattern {
 public:
  explicit Numbers(int most) : most_(most) {}

  void Cut(std::string_view text, const Sink& sink) const override {
    const Scanner scan(text);
    const char* const end = text.data() + text.size();
    const auto give = [&](const char* from, const char* to, bool is_match) {
      if (from != to) sink(std::string_view(from, static_cast<size_t>(to - from)), is_match);
    };
    for (const char* p = text.data(); p != end;) {
      const char* number = scan.SkipNonNumbers(p);
      give(p, number, false);
      p = scan.Numbers(number, most_);
      give(number, p, true);
    }
  }

 private:
  int most_;
};

template <typename Matcher>
std::unique_ptr<SplitPattern> Make(Matcher matcher) {
  return std::make_unique<HandWritten<Matcher>>(matcher);
}

#define LS_CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define LS_PREFIX R"([^\r\n\p{L}\p{N}]?)"
#define LS_U R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])"
#define LS_L R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])"

constexpr std::string_view kGpt2[] = {
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
    R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
    R"('(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s)"};

// The other patterns are words, then numbers, then the rest.
constexpr std::string_view kLlama3Words = LS_CONTRACTIONS "|" LS_PREFIX R"(\p{L}+)";
constexpr std::string_view kGpt4oWords = LS_PREFIX LS_U
    "*" LS_L "+" LS_CONTRACTIONS "?|" LS_PREFIX LS_U "+" LS_L "*" LS_CONTRACTIONS "?";
constexpr std::string_view kTekkenWords = LS_PREFIX LS_U "*" LS_L "+|" LS_PREFIX LS_U "+" LS_L "*";
constexpr std::pair<std::string_view, int> kDigits[] = {
    {R"(|\p{N}{1,3})", 3}, {R"(|\p{N}{1,2})", 2}, {R"(|\p{N})", 1}};
constexpr std::string_view kLlama3Rest = R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kGpt4oRest = R"(| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Whether `regex` is the three parts one after the other.
bool Is(std::string_view regex, std::string_view words, std::string_view numbers,
        std::string_view rest) {
  return regex.size() == words.size() + numbers.size() + rest.size() && regex.starts_with(words) &&
         regex.ends_with(rest) && regex.substr(words.size()).starts_with(numbers);
}

}  // namespace

std::string NamedSplitPattern(std::string_view name) {
  if (name == "gpt2") return std::string(kGpt2[0]);
  const auto join = [](std::string_view words, int digits, std::string_view rest) {
    const auto numbers = std::ranges::find(kDigits, digits, [](const auto& n) { return n.second; });
    return StrCat(words, numbers->first, rest);
  };
  if (name == "llama-3") return join(kLlama3Words, 3, kLlama3Rest);
  if (name == "qwen2") return join(kLlama3Words, 1, kLlama3Rest);
  if (name == "gpt-4o") return join(kGpt4oWords, 3, kGpt4oRest);
  if (name == "tekken") return join(kTekkenWords, 1, kGpt4oRest);
  throw InputError(
      StrCat("split_pattern=", name, ": expected gpt2, llama-3, qwen2, gpt-4o or tekken"));
}

std::unique_ptr<SplitPattern> KnownSplitPattern(std::string_view regex) {
  for (const std::string_view gpt2 : kGpt2) {
    if (regex == gpt2) return Make(Gpt2{});
  }
  if (regex == R"(\p{N})") return std::make_unique<Numbers>(1);
  if (regex == R"(\p{N}{1,3})") return std::make_unique<Numbers>(3);
  if (regex == R"(\p{N}+)") return std::make_unique<Numbers>(INT_MAX);
  for (const auto& [numbers, digits] : kDigits) {
    if (Is(regex, kLlama3Words, numbers, kLlama3Rest)) return Make(Llama3{digits});
    if (Is(regex, kGpt4oWords, numbers, kGpt4oRest)) return Make(Gpt4o{true, digits});
    if (Is(regex, kTekkenWords, numbers, kGpt4oRest)) return Make(Gpt4o{false, digits});
  }
  return nullptr;
}

}  // namespace lockstep::data
