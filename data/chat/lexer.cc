// Templates to tokens.
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <utility>

#include "data/chat/syntax.h"
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
  std::string out = Replace(Replace(source, "\r\n", "\n", -1), "\r", "\n", -1);
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  std::vector<Token> Run() {
    while (at_ < source_.size()) {
      size_t open = at_;  // of the next tag
      while (open < source_.size() && !At("{%", open) && !At("{{", open) && !At("{#", open)) ++open;
      AddText(at_, open, at_line_start_);
      if (open == source_.size()) break;
      at_ = open + 2;
      if (Peek() == '-' || Peek() == '+') ++at_;
      if (At("{#", open)) {
        SkipComment(open);
      } else if (At("{{", open)) {
        LexTag("{{", "}}", open);
      } else if (!LexRaw(open)) {
        LexTag("{%", "%}", open);
      }
    }
    Add(TokenType::kOperator, "", source_.size());
    tokens_.back().type = TokenType::kEnd;
    return std::move(tokens_);
  }

 private:
  char Peek(size_t ahead = 0) const {
    return at_ + ahead < source_.size() ? source_[at_ + ahead] : '\0';
  }
  bool At(std::string_view text, size_t offset) const {
    return source_.compare(offset, text.size(), text) == 0;
  }

  // The text [begin, open), without what the tag at `open` trims.
  void AddText(size_t begin, size_t open, bool at_line_start) {
    std::string_view text = std::string_view(source_).substr(begin, open - begin);
    const char sign = open + 2 < source_.size() ? source_[open + 2] : '\0';
    if (sign == '-' && open < source_.size()) {
      text = Strip(text, std::nullopt, false, true);
    } else if (sign != '+' && open < source_.size() && !At("{{", open)) {
      const size_t line = text.rfind('\n') + 1;  // 0 if there is no line end
      const bool blank = Strip(text.substr(line), std::nullopt).empty();
      if (blank && (line > 0 || at_line_start)) text = text.substr(0, line);
    }
    if (!text.empty()) Add(TokenType::kText, std::string(text), begin);
  }

  // If the tag's end is here, perhaps after - or +, goes behind it and what it trims.
  bool TakeEnd(std::string_view end) {
    const bool output = end == "}}";
    const bool strips = Peek() == '-', keeps = Peek() == '+' && !output;
    const size_t begin = at_ + (strips || keeps ? 1 : 0);
    if (!At(end, begin)) return false;
    at_ = begin + end.size();
    if (strips) {
      SkipSpace();
    } else if (!keeps && !output && Peek() == '\n') {
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
    const bool found = At(name, at_);
    at_ = found ? at_ + name.size() : before;
    if (found) SkipSpace();
    return found;
  }

  bool LexRaw(size_t open) {
    const size_t before = at_;
    const bool word = TakeWord("raw");
    const bool strips = At("-%}", at_);
    if (!word || (!strips && !At("%}", at_))) {
      at_ = before;
      return false;
    }
    at_ += strips ? 3 : 2;
    if (strips) SkipSpace();
    const size_t begin = at_;
    const bool at_line_start = source_[at_ - 1] == '\n';
    for (size_t end = at_; (end = source_.find("{%", end)) != std::string::npos; end += 2) {
      at_ = end + 2;
      if (Peek() == '-' || Peek() == '+') ++at_;
      if (!TakeWord("endraw") || !TakeEnd("%}")) continue;
      AddText(begin, end, at_line_start);
      return true;
    }
    FailAt(PositionOf(open), "this raw block has no end, {% endraw %}");
  }

  // The tokens up to the end of a tag.
  void LexTag(std::string_view begin_mark, std::string_view end_mark, size_t open) {
    Add(TokenType::kOperator, std::string(begin_mark), open);
    std::string closers;  // of the brackets that are open
    for (;;) {
      const size_t begin = at_;
      if (closers.empty() && TakeEnd(end_mark)) {
        return Add(TokenType::kOperator, std::string(end_mark), begin);
      }
      SkipSpace();
      if (at_ > begin) continue;
      if (at_ >= source_.size()) FailAt(PositionOf(open), "this tag has no end, ", end_mark);
      if (Peek() == '\'' || Peek() == '"') {
        LexString();
      } else if (IsDigitByte(Peek())) {
        LexNumber();
      } else if (IsNameByte(Peek())) {
        while (IsNameByte(Peek())) ++at_;
        Add(TokenType::kName, source_.substr(begin, at_ - begin), begin);
      } else {
        LexOperator(&closers);
      }
    }
  }

  void LexOperator(std::string* closers) {
    static constexpr std::string_view kTwo[] = {"//", "**", "==", "!=", ">=", "<="};
    const std::string two = source_.substr(at_, 2), one = source_.substr(at_, 1);
    const Position position = PositionOf(at_);
    const bool is_two = std::ranges::find(kTwo, two) != std::end(kTwo);
    if (!is_two && std::string_view("+-/*%~[](){}<>=.:|,;").find(one) == std::string_view::npos) {
      const uint32_t code = DecodeUtf8(source_, at_).code_point;
      FailAt(position, "unexpected character ", DescribeCharacter(code), " in a tag");
    }
    if (!is_two && std::string_view("([{").find(one) != std::string_view::npos) {
      *closers += one == "(" ? ')' : one == "[" ? ']' : '}';
    } else if (!is_two && std::string_view(")]}").find(one) != std::string_view::npos) {
      if (closers->empty()) FailAt(position, "unexpected '", one, "'");
      if (closers->back() != one[0]) {
        FailAt(position, "unexpected '", one, "', expected '", closers->back(), "'");
      }
      closers->pop_back();
    }
    Add(TokenType::kOperator, is_two ? two : one, at_);
    at_ += is_two ? 2 : 1;
  }

  // Digits with single underscores between them.
  std::string TakeDigits() {
    std::string digits;
    for (; IsDigitByte(Peek()) || (Peek() == '_' && IsDigitByte(Peek(1))); ++at_) {
      if (Peek() != '_') digits += Peek();
    }
    return digits;
  }

  void LexNumber() {
    const size_t begin = at_;
    const bool is_index = begin > 0 && source_[begin - 1] == '.';  // x.0
    std::string text = TakeDigits();
    TokenType type = TokenType::kInteger;
    // The fraction or the exponent, whose digits are behind `mark` bytes.
    const auto take_part = [&](size_t mark) {
      if (is_index || !IsDigitByte(Peek(mark))) return;
      text.append(source_, at_, mark);
      at_ += mark;
      text += TakeDigits();
      type = TokenType::kFloat;
    };
    if (Peek() == '.') take_part(1);
    if ((Peek() | 0x20) == 'e') take_part(Peek(1) == '+' || Peek(1) == '-' ? 2 : 1);
    if (IsNameByte(Peek())) {
      FailAt(PositionOf(begin), "this number is not supported; write it in decimal");
    }
    if (type == TokenType::kInteger && text[0] == '0' &&
        text.find_first_not_of('0') != std::string::npos) {
      FailAt(PositionOf(begin), "an integer must not begin with 0");
    }
    Add(type, text, begin);
  }

  void LexString() {
    const size_t begin = at_;
    const char quote = source_[at_++];
    std::string text;
    for (;;) {
      if (at_ >= source_.size()) FailAt(PositionOf(begin), "this text has no end, ", quote);
      const char c = source_[at_++];
      if (c == quote) break;
      if (c == '\\' && at_ < source_.size()) {
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
    const char c = source_[at_++];
    static constexpr std::string_view kNamed = "\\\\''\"\"a\ab\bf\fn\nr\rt\tv\v";
    for (size_t i = 0; i < kNamed.size(); i += 2) {
      if (kNamed[i] == c) return text->push_back(kNamed[i + 1]);
    }
    if (c == '\n') return;
    if (c == 'N') FailAt(PositionOf(begin), "names of characters, \\N{...}, are not supported");
    const bool octal = c >= '0' && c <= '7';
    const size_t digits = octal ? 3 : c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits == 0) {
      text->append(source_, begin, 2);
      return;
    }
    if (octal) --at_;
    const std::string number = source_.substr(at_, digits);
    uint32_t code = 0;
    const char* end = number.data() + number.size();
    end = std::from_chars(number.data(), end, code, octal ? 8 : 16).ptr;
    const auto count = static_cast<size_t>(end - number.data());
    if (!octal && count < digits) {
      FailAt(PositionOf(begin), "this escape needs ", digits, " digits");
    }
    at_ += count;
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) {
      FailAt(PositionOf(begin), "this escape is not a character");
    }
    AppendUtf8(code, text);
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
