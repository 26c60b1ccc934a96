#define PCRE2_CODE_UNIT_WIDTH 8
#include "data/tokenizer/split_pattern.h"

#include <pcre2.h>

#include <cstdio>

#include "core/error.h"
#include "core/io/json.h"
#include "data/tokenizer/character_class.h"

namespace lockstep::data {
namespace {

std::string PcreMessage(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

struct PcreDeleter {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};

class Pcre2Pattern : public SplitPattern {
 public:
  Pcre2Pattern(std::string_view regex, const std::string& where) : where_(where) {
    const std::string pattern = TranslateForPcre2(regex, where);
    int error = 0;
    PCRE2_SIZE offset = 0;
    // Oniguruma's ^ and $ match at every line.
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                              PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                              &error, &offset, nullptr));
    if (code_ == nullptr) {
      throw InputError(StrCat(where, ": PCRE2 cannot compile this pattern: ", PcreMessage(error),
                              ", before ", Quoted(std::string_view(pattern).substr(offset))));
    }
    // Without JIT (on an unsupported platform, or if memory must not be executable) the interpreter
    // finds the same matches, only slower.
    (void)pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);
  }

  void Cut(std::string_view text, const Sink& sink) const override {
    const std::unique_ptr<pcre2_match_data, PcreDeleter> match(pcre2_match_data_create(1, nullptr));
    if (match == nullptr) throw std::bad_alloc();
    const PCRE2_SIZE* span = pcre2_get_ovector_pointer(match.get());
    size_t done = 0;  // everything before has been given to the sink
    const auto give_gap = [&](size_t end) {
      if (end > done) sink(text.substr(done, end - done), false);
      done = end;
    };
    for (size_t from = 0; from < text.size();) {
      if (!Find(text, from, match.get())) break;
      give_gap(span[0]);
      if (span[1] > span[0]) {
        sink(text.substr(span[0], span[1] - span[0]), true);
        from = done = span[1];
      } else if (span[0] < text.size()) {  // an empty match only cuts
        int length;
        DecodeValidUtf8(text.data() + span[0], &length);
        from = span[0] + static_cast<size_t>(length);
      } else {
        break;
      }
    }
    give_gap(text.size());
  }

 private:
  bool Find(std::string_view text, size_t from, pcre2_match_data* match) const {
    const auto run = [&](uint32_t options) {
      return pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                         PCRE2_NO_UTF_CHECK | options, match, nullptr);
    };
    int rc = run(0);
    // The interpreter keeps on the heap what does not fit the stack of the compiled pattern.
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) rc = run(PCRE2_NO_JIT);
    if (rc == PCRE2_ERROR_NOMATCH) return false;
    if (rc >= 0) return true;  // 0: the pattern has groups, which nobody uses
    throw InputError(StrCat(where_, ": this pattern fails on the text at byte ", from,
                            " of a piece of ", text.size(), ": ", PcreMessage(rc)));
  }

  std::string where_;
  std::unique_ptr<pcre2_code, PcreDeleter> code_;
};

class LiteralPattern : public SplitPattern {
 public:
  explicit LiteralPattern(std::string_view text) : text_(text) {}

  void Cut(std::string_view text, const Sink& sink) const override {
    while (!text.empty()) {
      const size_t at = std::min(text.find(text_), text.size());
      if (at > 0) sink(text.substr(0, at), false);
      if (at < text.size()) sink(text.substr(at, text_.size()), true);
      text.remove_prefix(std::min(at + text_.size(), text.size()));
    }
  }

 private:
  std::string text_;
};

// White_Space, spelled out because PCRE2's \s also has U+180E.
constexpr std::string_view kSpaces =
    R"(\x09-\x0d\x20\x85\xa0\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

// The members of \p{name} that PCRE2 10.42 does not know, for a character class.
std::string Newer(std::string_view name) {
  if (name == "Han") return R"(\x{2ebf0}-\x{2ee5d}\x{31350}-\x{323af})";
  std::string ranges;
  for (const NewerRange& range : CharactersNewerThanUnicode14()) {
    if (!range.category.starts_with(name)) continue;
    char buffer[32];
    std::snprintf(buffer, sizeof(buffer), "\\x{%x}-\\x{%x}", range.first, range.last);
    ranges += buffer;
  }
  return ranges;
}

// What Oniguruma's [[:word:]] has, for a character class; PCRE2's has no marks. Oniguruma's \w has
// these digits, too, but not within a class.
std::string Word() {
  return StrCat(R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})", Newer("L"), Newer("M"), Newer("Nd"),
                Newer("Nl"));
}
constexpr std::string_view kDigitsOfWords = R"(\xb2\xb3\xb9\xbc-\xbe)";

class Translator {
 public:
  Translator(std::string_view regex, const std::string& where) : regex_(regex), where_(where) {}

  std::string Translate() {
    while (at_ < regex_.size()) {
      const char c = regex_[at_];
      if (c == '\\') {
        Escape();
      } else if (in_class_) {
        ClassCharacter(c);
      } else {
        Copy(1);
        if (c != '[') continue;
        in_class_ = true;
        if (Next() == '^') Copy(1);
        if (Next() == ']') Copy(1);
      }
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void Refuse(const std::string& what) const {
    throw InputError(StrCat(where_, ": the pattern ", Quoted(regex_), " has ", what,
                            ", which Lockstep does not support"));
  }
  char Next(size_t ahead = 0) const {
    return at_ + ahead < regex_.size() ? regex_[at_ + ahead] : '\0';
  }
  void Copy(size_t count) {
    out_ += regex_.substr(at_, count);
    at_ += std::min(count, regex_.size() - at_);
  }
  // Replaces `count` bytes by a class with these members, or its complement.
  void Members(size_t count, std::string_view members, bool complement) {
    if (in_class_ && complement) return Copy(count);
    out_ += in_class_ ? std::string(members) : StrCat(complement ? "[^" : "[", members, "]");
    at_ += count;
  }

  void ClassCharacter(char c) {
    if (c == '[' && Next(1) == ':') {
      const size_t end = regex_.find(":]", at_);
      if (end == std::string_view::npos) Refuse("an open [:");
      const std::string name(regex_.substr(at_ + 2, end - at_ - 2));
      if (name == "word") return Members(end + 2 - at_, Word(), /*complement=*/false);
      for (const char* other : {"alpha", "alnum", "punct", "^alpha", "^alnum", "^punct", "^word"}) {
        if (name == other) Refuse(StrCat("[:", name, ":]"));  // other characters for PCRE2
      }
      return Copy(end + 2 - at_);
    }
    // Only Oniguruma has sets inside of sets.
    if (c == '[') Refuse("a character class inside of another");
    if (c == '&' && Next(1) == '&') Refuse("an intersection (&&) of character classes");
    if (c == ']') in_class_ = false;
    Copy(1);
  }

  void Escape() {
    switch (Next(1)) {
      case 's':
      case 'S':
        return Members(2, kSpaces, Next(1) == 'S');
      case 'w':
        return Members(2, in_class_ ? Word() : StrCat(Word(), kDigitsOfWords), false);
      case 'W':
        if (in_class_) Refuse("\\W within a character class");
        return Members(2, StrCat(Word(), kDigitsOfWords), true);
      case 'b':
      case 'B':
        return in_class_ ? Copy(2) : Boundary(Next(1) == 'b');
      case 'p':
      case 'P':
        return Property();
      case 'h':  // hexadecimal digits for Oniguruma, white space for PCRE2
      case 'H':
      case 'Q':
      case 'C':
      case 'g':
      case 'N':
      case 'O':
      case 'y':
      case 'Y':
        Refuse(StrCat("\\", std::string(1, Next(1))));
      default:
        return Copy(2);
    }
  }

  // Between a character of a word and another, or the end of the text; or the complement.
  void Boundary(bool is_one) {
    const std::string word = StrCat("[", Word(), kDigitsOfWords, "]");
    const std::string after = StrCat("(?<=", word, ")"), before = StrCat("(?=", word, ")");
    const std::string not_after = StrCat("(?<!", word, ")"), not_before = StrCat("(?!", word, ")");
    out_ += is_one ? StrCat("(?:", after, not_before, "|", not_after, before, ")")
                   : StrCat("(?:", after, before, "|", not_after, not_before, ")");
    at_ += 2;
  }

  void Property() {
    const size_t close = Next(2) == '{' ? regex_.find('}', at_) : at_ + 2;
    if (close >= regex_.size()) Refuse("a \\p without a name");
    std::string_view name =
        Next(2) == '{' ? regex_.substr(at_ + 3, close - at_ - 3) : regex_.substr(at_ + 2, 1);
    bool complement = Next(1) == 'P';
    if (name.starts_with('^')) {
      complement = !complement;
      name.remove_prefix(1);
    }
    const std::string newer = name.empty() ? "" : Newer(name);
    const size_t count = close + 1 - at_;
    if (newer.empty()) return Copy(count);
    Members(count, StrCat("\\p{", name, "}", newer), complement);
  }

  std::string_view regex_;
  const std::string& where_;
  std::string out_;
  size_t at_ = 0;
  bool in_class_ = false;
};

}  // namespace

std::string TranslateForPcre2(std::string_view regex, const std::string& where) {
  return Translator(regex, where).Translate();
}

std::unique_ptr<SplitPattern> SplitPattern::Compile(std::string_view regex,
                                                    const std::string& where) {
  auto known = KnownSplitPattern(regex);
  return known != nullptr ? std::move(known) : std::make_unique<Pcre2Pattern>(regex, where);
}

std::unique_ptr<SplitPattern> SplitPattern::Literal(std::string_view text) {
  return std::make_unique<LiteralPattern>(text);
}

}  // namespace lockstep::data
