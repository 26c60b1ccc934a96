#include "tools/cudasim/ptx/text/lexer.h"

#include <immintrin.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace cudasim {
namespace ptx {
namespace {

bool IsWordCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '$' || c == '%' || c == '.';
}

// The first of the three, or the end. Most of what a program reads is bodies that it skips.
const char* FindBraceOrSlash(const char* at, const char* end) {
  for (; end - at >= 32; at += 32) {
    const __m256i text = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
    const auto is = [text](char c) { return _mm256_cmpeq_epi8(text, _mm256_set1_epi8(c)); };
    const __m256i any = _mm256_or_si256(_mm256_or_si256(is('{'), is('}')), is('/'));
    const auto found = static_cast<uint32_t>(_mm256_movemask_epi8(any));
    if (found != 0) return at + __builtin_ctz(found);
  }
  return std::find_if(at, end, [](char c) { return c == '{' || c == '}' || c == '/'; });
}

}  // namespace

char Lexer::Peek() {
  while (next_ < end_) {
    const char c = *next_;
    if (c == '\n') {
      ++line_;
      ++next_;
    } else if (c == ' ' || c == '\t' || c == '\r') {
      ++next_;
    } else if (c == '/' && next_ + 1 < end_ && next_[1] == '/') {
      const void* const newline = std::memchr(next_, '\n', static_cast<size_t>(end_ - next_));
      next_ = newline != nullptr ? static_cast<const char*>(newline) : end_;
    } else if (c == '/' && next_ + 1 < end_ && next_[1] == '*') {
      const std::string_view rest(next_, static_cast<size_t>(end_ - next_));
      const size_t length = std::min(rest.find("*/"), rest.size() - 2) + 2;
      line_ += static_cast<int>(std::count(next_, next_ + length, '\n'));
      next_ += length;
    } else {
      return c;
    }
  }
  return 0;
}

bool Lexer::Eat(char c) {
  if (Peek() != c) return false;
  ++next_;
  return true;
}

void Lexer::Expect(char c) {
  if (!Eat(c)) Fail(std::string("expected '") + c + "'");
}

std::string_view Lexer::Word() {
  Peek();
  const char* const begin = next_;
  while (next_ < end_) {
    if (IsWordCharacter(*next_)) {
      ++next_;
    } else if (*next_ == ':' && next_ + 2 < end_ && next_[1] == ':' && IsWordCharacter(next_[2])) {
      next_ += 2;
    } else {
      break;
    }
  }
  return {begin, static_cast<size_t>(next_ - begin)};
}

std::string_view Lexer::ExpectWord(const char* what) {
  const std::string_view word = Word();
  if (word.empty()) Fail(std::string("expected ") + what);
  return word;
}

std::string_view Lexer::Until(char c) {
  Peek();
  const char* const begin = next_;
  while (next_ < end_ && *next_ != c) line_ += *next_++ == '\n';
  const std::string_view text(begin, static_cast<size_t>(next_ - begin));
  if (next_ < end_) line_ += *next_++ == '\n';
  return text;
}

std::string_view Lexer::Block() {
  const char* const begin = next_;
  int depth = 1;
  for (next_ = FindBraceOrSlash(next_, end_); next_ < end_;
       next_ = FindBraceOrSlash(next_ + 1, end_)) {
    if (*next_ == '{') {
      ++depth;
    } else if (*next_ == '}' && --depth == 0) {
      line_ += static_cast<int>(std::count(begin, next_, '\n'));
      return {begin, static_cast<size_t>(next_++ - begin)};
    } else if (*next_ == '/' && next_ + 1 < end_ && next_[1] == '/') {
      while (next_ + 1 < end_ && next_[1] != '\n') ++next_;
    }
  }
  Fail("a { without its }");
}

Operand Lexer::Number() {
  Operand result;
  result.kind = Operand::Kind::kImmediate;
  const bool negative = Eat('-');
  std::string word(ExpectWord("a number"));
  if (word.size() == 10 && (word[1] == 'f' || word[1] == 'F') && word[0] == '0') {
    result.literal = Operand::Literal::kF32;
    result.value = std::strtoull(word.c_str() + 2, nullptr, 16) ^ (negative ? 0x80000000u : 0);
  } else if (word.size() == 18 && (word[1] == 'd' || word[1] == 'D') && word[0] == '0') {
    result.literal = Operand::Literal::kF64;
    result.value = std::strtoull(word.c_str() + 2, nullptr, 16) ^ (uint64_t{negative} << 63);
  } else if (word.find('.') != std::string::npos) {
    if (Peek() == '-' || Peek() == '+') Fail("exponents of decimal numbers are not implemented");
    const double value = std::strtod(word.c_str(), nullptr) * (negative ? -1 : 1);
    result.literal = Operand::Literal::kF64;
    std::memcpy(&result.value, &value, sizeof(value));
  } else {
    const bool binary = word.size() > 2 && word[0] == '0' && (word[1] == 'b' || word[1] == 'B');
    char* rest;
    result.value = std::strtoull(word.c_str() + (binary ? 2 : 0), &rest, binary ? 2 : 0);
    if (*rest != '\0' && std::strcmp(rest, "U") != 0) Fail("'" + word + "' is not a number");
    if (negative) result.value = 0 - result.value;
  }
  return result;
}

void Lexer::Fail(const std::string& message) const {
  const std::string_view rest(next_, std::min<size_t>(40, static_cast<size_t>(end_ - next_)));
  throw Unsupported("PTX line " + std::to_string(line_) + ": " + message + " at \"" +
                    std::string(rest.substr(0, rest.find('\n'))) + "\"");
}

}  // namespace ptx
}  // namespace cudasim
