// The tokens of a template.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace lockstep::data::chat {

struct Position {
  int line = 1, column = 1;  // column in characters
};

// A template that cannot be parsed, with the position.
struct LocatedFailure {
  Position position;
  std::string message;
};

template <class... Args>
[[noreturn]] void FailAt(const Position& position, const Args&... args) {
  throw LocatedFailure{position, StrCat(args...)};
}

enum class TokenType {
  kText,      // between the tags
  kOperator,  // also {% %} {{ }}
  kName,
  kString,   // `text` is what it denotes
  kInteger,  // `text` without underscores
  kFloat,
  kEnd
};

struct Token {
  TokenType type = TokenType::kEnd;
  std::string text;
  Position position;
};

// With trim_blocks and lstrip_blocks of Jinja: white space before a tag on its line, and the
// newline after it, are dropped, as `-` drops more and `+` none. Comments are dropped; raw blocks
// are text. The last token is kEnd. Throws LocatedFailure.
std::vector<Token> Tokenize(std::string_view source);

}  // namespace lockstep::data::chat
