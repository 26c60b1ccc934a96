#include "data/chat/parser.h"

namespace lockstep::data::chat {

bool TokenStream::TakeOperator(std::string_view text) {
  if (!IsOperator(text)) return false;
  Next();
  return true;
}

bool TokenStream::TakeName(std::string_view text) {
  if (!IsName(text)) return false;
  Next();
  return true;
}

void TokenStream::RequireOperator(std::string_view text) {
  if (TakeOperator(text)) return;
  FailAt(Peek().position, "expected '", text, "', not ", Describe(Peek()));
}

void TokenStream::RequireName(std::string_view text) {
  if (TakeName(text)) return;
  FailAt(Peek().position, "expected '", text, "', not ", Describe(Peek()));
}

void TokenStream::RequireType(TokenType type, std::string_view what) {
  if (Peek().type != type) {
    FailAt(Peek().position, "expected ", what, ", not ", Describe(Peek()));
  }
  Next();
}

std::string TokenStream::RequireAnyName(std::string_view what) {
  std::string name = Peek().text;
  RequireType(TokenType::kName, what);
  return name;
}

std::string Describe(const Token& token) {
  switch (token.type) {
    case TokenType::kText:
      return "text";
    case TokenType::kTagBegin:
      return "'{%'";
    case TokenType::kTagEnd:
      return "the end of the tag";
    case TokenType::kOutputBegin:
      return "'{{'";
    case TokenType::kOutputEnd:
      return "'}}'";
    case TokenType::kString:
      return "a text";
    case TokenType::kEnd:
      return "the end of the template";
    default:
      return "'" + token.text + "'";
  }
}

}  // namespace lockstep::data::chat
