#include "data/chat/lexer.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "data/chat/text.h"
#include "data/utf8.h"

namespace lockstep::data::chat {
namespace {

bool IsDigitByte(char c) { return c >= '0' && c <= '9'; }
bool IsNameByte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || IsDigitByte(c);
}

// Every kind of line end becomes \n, and one at the very end is dropped.
std::string Normalized(std::string_view source) {
  std::string out;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  std::vector<Token> Run() {
    while (at_ < source_.size()) {
      const size_t open = FindTag();
      std::string_view text = std::string_view(source_).substr(at_, open - at_);
      if (open == std::string::npos) {
        Add(TokenType::kText, std::string(text), at_);
        break;
      }
      const char kind = source_[open + 1];
      const size_t text_begin = at_;
      text = TextBefore(text, open, /*strips_line=*/kind != '{');
      if (!text.empty()) Add(TokenType::kText, std::string(text), text_begin);
      at_ = AfterSign(open);
      if (kind == '#') {
        SkipComment(open);
      } else if (kind == '{') {
        Add(TokenType::kOutputBegin, "", open);
        LexTag("}}", TokenType::kOutputEnd, open);
      } else if (!LexRaw(open)) {
        Add(TokenType::kTagBegin, "", open);
        LexTag("%}", TokenType::kTagEnd, open);
      }
    }
    Add(TokenType::kEnd, "", source_.size());
    return std::move(tokens_);
  }

 private:
  // The next {%, {{ or {#, or npos.
  size_t FindTag() const {
    for (size_t i = at_; (i = source_.find('{', i)) != std::string::npos; ++i) {
      const char next = i + 1 < source_.size() ? source_[i + 1] : '\0';
      if (next == '%' || next == '{' || next == '#') return i;
    }
    return std::string::npos;
  }

  size_t AfterSign(size_t open) const {
    const char sign = open + 2 < source_.size() ? source_[open + 2] : '\0';
    return open + (sign == '-' || sign == '+' ? 3 : 2);
  }

  // What is left of the text before the tag at `open`.
  std::string_view TextBefore(std::string_view text, size_t open, bool strips_line) const {
    const char sign = open + 2 < source_.size() ? source_[open + 2] : '\0';
    if (sign == '-') return Strip(text, std::nullopt, false, true);
    if (sign == '+' || !strips_line) return text;
    const size_t newline = text.rfind('\n');
    const size_t line = newline == std::string_view::npos ? 0 : newline + 1;
    const bool from_start = newline != std::string_view::npos || at_line_start_;
    const bool blank = Strip(text.substr(line), std::nullopt).empty();
    return from_start && blank ? text.substr(0, line) : text;
  }

  // If the tag's end `end` is here, preceded by - or +, goes behind it and what it trims.
  bool TakeEnd(std::string_view end) {
    const char sign = at_ < source_.size() ? source_[at_] : '\0';
    const bool output = end == "}}";
    const bool strips = sign == '-', keeps = sign == '+' && !output;
    const size_t begin = at_ + (strips || keeps ? 1 : 0);
    if (source_.compare(begin, end.size(), end) != 0) return false;
    at_ = begin + end.size();
    if (strips) {
      SkipSpace();
    } else if (!keeps && !output && at_ < source_.size() && source_[at_] == '\n') {
      ++at_;
    }
    at_line_start_ = source_[at_ - 1] == '\n';
    return true;
  }

  void SkipSpace() {
    while (at_ < source_.size()) {
      const Utf8Character character = DecodeUtf8(source_, at_);
      if (!IsSpace(character.code_point)) break;
      at_ += static_cast<size_t>(character.length);
    }
  }

  void SkipComment(size_t open) {
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) FailAt(PositionOf(open), "this comment has no end, #}");
    const bool sign = end > at_ && (source_[end - 1] == '-' || source_[end - 1] == '+');
    at_ = end - (sign ? 1 : 0);
    TakeEnd("#}");
  }

  // Goes behind `name` and white space around it, or stays.
  bool TakeWord(std::string_view name) {
    const size_t before = at_;
    SkipSpace();
    if (source_.compare(at_, name.size(), name) == 0) {
      at_ += name.size();
      SkipSpace();
      return true;
    }
    at_ = before;
    return false;
  }

  bool LexRaw(size_t open) {
    const size_t before = at_;
    const bool word = TakeWord("raw");
    const bool strips = source_.compare(at_, 3, "-%}") == 0;
    if (!word || (!strips && source_.compare(at_, 2, "%}") != 0)) {
      at_ = before;
      return false;
    }
    at_ += strips ? 3 : 2;
    if (strips) SkipSpace();
    at_line_start_ = source_[at_ - 1] == '\n';
    const size_t begin = at_;
    for (size_t end = at_; (end = source_.find("{%", end)) != std::string::npos; end += 2) {
      at_ = AfterSign(end);
      if (!TakeWord("endraw")) continue;
      const bool at_line_start = at_line_start_;
      if (!TakeEnd("%}")) continue;
      const bool after = std::exchange(at_line_start_, at_line_start);
      const auto raw = std::string_view(source_).substr(begin, end - begin);
      const std::string text(TextBefore(raw, end, /*strips_line=*/true));
      at_line_start_ = after;
      if (!text.empty()) Add(TokenType::kText, text, begin);
      return true;
    }
    FailAt(PositionOf(open), "this raw block has no end, {% endraw %}");
  }

  // The tokens up to the end of a tag.
  void LexTag(std::string_view end, TokenType end_type, size_t open) {
    std::string closers;  // of the brackets that are open
    for (;;) {
      const size_t begin = at_;
      if (closers.empty() && TakeEnd(end)) {
        Add(end_type, "", begin);
        return;
      }
      SkipSpace();
      if (at_ > begin) continue;
      if (at_ >= source_.size()) FailAt(PositionOf(open), "this tag has no end, ", end);
      const char c = source_[at_];
      if (c == '\'' || c == '"') {
        LexString();
      } else if (IsDigitByte(c)) {
        LexNumber();
      } else if (IsNameByte(c)) {
        while (at_ < source_.size() && IsNameByte(source_[at_])) ++at_;
        Add(TokenType::kName, source_.substr(begin, at_ - begin), begin);
      } else {
        LexOperator(&closers);
      }
    }
  }

  void LexOperator(std::string* closers) {
    static constexpr std::string_view kTwo[] = {"//", "**", "==", "!=", ">=", "<="};
    const size_t begin = at_;
    const bool two =
        std::ranges::find(kTwo, std::string_view(source_).substr(at_, 2)) != std::end(kTwo);
    const char c = source_[at_];
    if (!two && std::string_view("+-/*%~[](){}<>=.:|,;").find(c) == std::string_view::npos) {
      const uint32_t code = DecodeUtf8(source_, at_).code_point;
      FailAt(PositionOf(at_), "unexpected character ", DescribeCharacter(code), " in a tag");
    }
    at_ += two ? 2 : 1;
    if (!two && (c == '(' || c == '[' || c == '{')) {
      closers->push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
    } else if (!two && (c == ')' || c == ']' || c == '}')) {
      if (closers->empty()) FailAt(PositionOf(begin), "unexpected '", c, "'");
      if (closers->back() != c) {
        FailAt(PositionOf(begin), "unexpected '", c, "', expected '", closers->back(), "'");
      }
      closers->pop_back();
    }
    Add(TokenType::kOperator, source_.substr(begin, at_ - begin), begin);
  }

  // Digits with single underscores between them.
  std::string TakeDigits() {
    std::string digits;
    while (at_ < source_.size() &&
           (IsDigitByte(source_[at_]) ||
            (source_[at_] == '_' && at_ + 1 < source_.size() && IsDigitByte(source_[at_ + 1])))) {
      if (source_[at_] != '_') digits += source_[at_];
      ++at_;
    }
    return digits;
  }

  void LexNumber() {
    const size_t begin = at_;
    const bool after_dot = begin > 0 && source_[begin - 1] == '.';  // x.0: an index
    std::string text = TakeDigits();
    bool is_float = false;
    const auto digit_at = [&](size_t i) { return i < source_.size() && IsDigitByte(source_[i]); };
    if (!after_dot && at_ < source_.size() && source_[at_] == '.' && digit_at(at_ + 1)) {
      ++at_;
      text += "." + TakeDigits();
      is_float = true;
    }
    if (!after_dot && at_ < source_.size() && (source_[at_] | 0x20) == 'e') {
      const bool sign =
          at_ + 1 < source_.size() && (source_[at_ + 1] == '+' || source_[at_ + 1] == '-');
      if (digit_at(at_ + (sign ? 2 : 1))) {
        text += source_.substr(at_, sign ? 2 : 1);
        at_ += sign ? 2 : 1;
        text += TakeDigits();
        is_float = true;
      }
    }
    if (at_ < source_.size() && IsNameByte(source_[at_])) {
      FailAt(PositionOf(begin), "this number is not supported; write it in decimal");
    }
    if (!is_float && text.size() > 1 && text[0] == '0' &&
        text.find_first_not_of('0') != std::string::npos) {
      FailAt(PositionOf(begin), "an integer must not begin with 0");
    }
    Add(is_float ? TokenType::kFloat : TokenType::kInteger, text, begin);
  }

  void LexString() {
    const size_t begin = at_;
    const char quote = source_[at_++];
    std::string text;
    for (;;) {
      if (at_ >= source_.size()) FailAt(PositionOf(begin), "this text has no end, ", quote);
      const char c = source_[at_++];
      if (c == quote) break;
      if (c == '\\') {
        LexEscape(&text);
      } else {
        text += c;
      }
    }
    Add(TokenType::kString, text, begin);
  }

  // What follows a backslash, as Python's unicode-escape reads it; unknown escapes stay.
  void LexEscape(std::string* text) {
    const size_t begin = at_ - 1;
    if (at_ >= source_.size()) FailAt(PositionOf(begin), "this text has no end");
    const char c = source_[at_++];
    static constexpr std::string_view kNamed = "\\\\''\"\"a\ab\bf\fn\nr\rt\tv\v";
    for (size_t i = 0; i < kNamed.size(); i += 2) {
      if (kNamed[i] == c) return text->push_back(kNamed[i + 1]);
    }
    if (c == '\n') return;
    const auto number = [&](size_t digits, int base, bool exact) {
      size_t count = 0;
      uint32_t code = 0;
      while (count < digits && at_ + count < source_.size() &&
             std::from_chars(&source_[at_ + count], &source_[at_ + count] + 1, code, base).ptr !=
                 &source_[at_ + count]) {
        ++count;
      }
      if (exact && count < digits)
        FailAt(PositionOf(begin), "this escape needs ", digits, " digits");
      std::from_chars(&source_[at_], &source_[at_] + count, code, base);
      at_ += count;
      if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) {
        FailAt(PositionOf(begin), "this escape is no character");
      }
      AppendUtf8(code, text);
    };
    if (c == 'x') return number(2, 16, true);
    if (c == 'u') return number(4, 16, true);
    if (c == 'U') return number(8, 16, true);
    if (c == 'N') FailAt(PositionOf(begin), "names of characters, \\N{...}, are not supported");
    if (c >= '0' && c <= '7') {
      --at_;
      return number(3, 8, false);
    }
    text->push_back('\\');
    text->push_back(c);
  }

  Position PositionOf(size_t offset) {
    if (offset < counted_) counted_ = 0, position_ = Position();
    for (; counted_ < offset; ++counted_) {
      if (source_[counted_] == '\n') {
        ++position_.line;
        position_.column = 1;
      } else if ((static_cast<uint8_t>(source_[counted_]) & 0xc0) != 0x80) {
        ++position_.column;
      }
    }
    return position_;
  }

  void Add(TokenType type, std::string text, size_t offset) {
    tokens_.push_back({type, std::move(text), PositionOf(offset)});
  }

  const std::string source_;
  size_t at_ = 0;
  bool at_line_start_ = true;  // what was consumed last ended a line
  std::vector<Token> tokens_;
  size_t counted_ = 0;  // position_ is that of this offset
  Position position_;
};

}  // namespace

std::vector<Token> Tokenize(std::string_view source) { return Lexer(Normalized(source)).Run(); }

}  // namespace lockstep::data::chat
