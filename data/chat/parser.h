// The parser of expressions, on which the parser of statements (statement_parser.cc) is built.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/chat/syntax.h"

namespace lockstep::data::chat {

// For messages.
std::string Describe(const Token& token);
void CheckDepth(int depth, const Position& position);
void AddOperand(Expression* expression, ExpressionPtr operand);

template <class... Operands>
ExpressionPtr Make(ExpressionKind kind, const Position& position, Operands... operands) {
  auto expression = std::make_unique<Expression>();
  expression->kind = kind;
  expression->position = position;
  (AddOperand(expression.get(), std::move(operands)), ...);
  return expression;
}

class ExpressionParser {
 protected:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& Peek(size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  Token Next() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  // Whether this name or operator is next.
  bool Is(std::string_view text, size_t ahead = 0) const {
    const Token& token = Peek(ahead);
    return (token.type == TokenType::kOperator || token.type == TokenType::kName) &&
           token.text == text;
  }
  bool Take(std::string_view text) {
    const bool is = Is(text);
    if (is) Next();
    return is;
  }
  void Require(std::string_view text) {
    if (Take(text)) return;
    const char* what = text == "%}" ? "the end of the tag, '" : "'";
    FailAt(Peek().position, "expected ", what, text, "', not ", Describe(Peek()));
  }
  std::string RequireName(std::string_view what) {
    if (Peek().type == TokenType::kName) return Next().text;
    FailAt(Peek().position, "expected ", what, ", not ", Describe(Peek()));
  }
  // A name that is not a constant.
  std::string RequireVariable(std::string_view what) {
    const Position position = Peek().position;
    const std::string name = RequireName(what);
    if (ConstantOf(name)) {
      FailAt(position, "'", name, "' is a constant and cannot be assigned to");
    }
    return name;
  }
  static std::optional<Value> ConstantOf(const std::string& name);

  // With `conditional` false, a following `if` is not part of the expression.
  ExpressionPtr Parse(bool conditional = true);
  // One expression, or several with commas between them: a tuple.
  ExpressionPtr ParseTuple(bool conditional = true);
  // `|filter|filter...`; without an operand for set blocks.
  ExpressionPtr ParseFilters(ExpressionPtr operand);

 private:
  // Operators of at least this precedence.
  ExpressionPtr ParseBinary(int least);
  ExpressionPtr ParseNot();
  ExpressionPtr ParseUnary(bool with_filters = true);
  ExpressionPtr ParsePrimary();
  ExpressionPtr ParseInteger();
  ExpressionPtr ParseElements(ExpressionPtr whole, std::string_view end);
  ExpressionPtr ParsePostfix(ExpressionPtr operand);
  ExpressionPtr ParseSubscript(ExpressionPtr operand);
  ExpressionPtr ParseTest(ExpressionPtr operand);
  void NameBuiltin(Expression* expression, BuiltinKind kind);
  ExpressionPtr ParseCall(ExpressionPtr function);
  void ParseArguments(Expression* call);

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace lockstep::data::chat
