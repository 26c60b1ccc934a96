// Templates to syntax. Throws LocatedFailure.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "data/chat/lexer.h"
#include "data/chat/syntax.h"

namespace lockstep::data::chat {

class TokenStream {
 public:
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& Peek(size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  Token Next() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool IsOperator(std::string_view text, size_t ahead = 0) const {
    return Peek(ahead).type == TokenType::kOperator && Peek(ahead).text == text;
  }
  bool IsName(std::string_view text, size_t ahead = 0) const {
    return Peek(ahead).type == TokenType::kName && Peek(ahead).text == text;
  }
  bool TakeOperator(std::string_view text);
  bool TakeName(std::string_view text);
  void RequireOperator(std::string_view text);
  void RequireName(std::string_view text);
  void RequireType(TokenType type, std::string_view what);
  // An identifier.
  std::string RequireAnyName(std::string_view what);

 private:
  std::vector<Token> tokens_;
  size_t at_ = 0;
};

// For messages.
std::string Describe(const Token& token);

// Expressions, in the order of precedence of Jinja.
class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream* tokens) : tokens_(*tokens) {}

  // With `conditional` false, a following `if` is not part of the expression.
  ExpressionPtr Parse(bool conditional = true);
  // One expression, or several with commas between them: a tuple.
  ExpressionPtr ParseTuple(bool conditional = true);
  // `|filter|filter...`, applied to `operand`, which may be nullptr (for set blocks).
  ExpressionPtr ParseFilters(ExpressionPtr operand);

 private:
  ExpressionPtr ParseOr();
  ExpressionPtr ParseAnd();
  ExpressionPtr ParseNot();
  ExpressionPtr ParseCompare();
  ExpressionPtr ParseBinary(size_t level);
  ExpressionPtr ParseUnary(bool with_filters = true);
  ExpressionPtr ParsePrimary();
  ExpressionPtr ParseNumber();
  ExpressionPtr ParseNameOrConstant();
  ExpressionPtr ParseList();
  ExpressionPtr ParseDict();
  ExpressionPtr ParsePostfix(ExpressionPtr operand);
  ExpressionPtr ParseFiltersAndTests(ExpressionPtr operand);
  ExpressionPtr ParseFilter(ExpressionPtr operand);
  ExpressionPtr ParseTest(ExpressionPtr operand);
  ExpressionPtr ParseSubscript(ExpressionPtr operand);
  void ParseArguments(Expression* call);

  TokenStream& tokens_;
  int depth_ = 0;  // of calls of Parse and ParseUnary
};

class StatementParser {
 public:
  explicit StatementParser(std::vector<Token> tokens)
      : tokens_(std::move(tokens)), expressions_(&tokens_) {}

  Block ParseTemplate();
  bool has_generation() const { return has_generation_; }

 private:
  // Up to the tag of one of these names, whose name is the next token.
  Block ParseBlock(std::initializer_list<std::string_view> ends, const Position& begin);
  // The same after the end of the opening tag; goes behind the name of the one closing tag.
  Block ParseBody(std::string_view end, const Position& begin);
  Statement ParseTag();
  Statement ParseFor(const Position& position);
  Statement ParseIf(const Position& position);
  Statement ParseSet(const Position& position);
  Statement ParseMacro(const Position& position);
  Statement ParseGeneration(const Position& position);
  Statement ParseLoopControl(const Token& name);
  Target ParseTarget(bool attributes);
  Target ParseTargetPart(bool attributes);
  // A block whose loops are its own: break and continue cannot leave it.
  Block ParseClosedBody(std::string_view end, const Position& begin);

  TokenStream tokens_;
  ExpressionParser expressions_;
  int depth_ = 0;
  int loops_ = 0;          // around, that break can leave
  int not_top_level_ = 0;  // set blocks, macros and generation blocks around
  bool has_generation_ = false;
};

}  // namespace lockstep::data::chat
