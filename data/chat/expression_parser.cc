#include <algorithm>
#include <array>
#include <charconv>

#include "data/chat/builtins.h"
#include "data/chat/parser.h"

namespace lockstep::data::chat {
namespace {

constexpr size_t kMaxArguments = 100;

void CheckDepth(int depth, const Position& position) {
  if (depth > kMaxSyntaxDepth) {
    FailAt(position, "expressions are nested deeper than ", kMaxSyntaxDepth, " levels");
  }
}

void AddOperand(Expression* expression, ExpressionPtr operand) {
  if (operand != nullptr) {
    expression->depth = std::max(expression->depth, operand->depth + 1);
    CheckDepth(expression->depth, expression->position);
  }
  expression->operands.push_back(std::move(operand));
}

template <class... Operands>
ExpressionPtr Make(ExpressionKind kind, const Position& position, Operands... operands) {
  auto expression = std::make_unique<Expression>();
  expression->kind = kind;
  expression->position = position;
  (AddOperand(expression.get(), std::move(operands)), ...);
  return expression;
}

ExpressionPtr Constant(const Position& position, Value value) {
  ExpressionPtr expression = Make(ExpressionKind::kConstant, position);
  expression->constant = std::move(value);
  return expression;
}

// Binary operators that group to the left, from the weakest. ~ is between + and *.
constexpr std::array<std::array<std::string_view, 4>, 4> kLevels = {
    {{"+", "-"}, {"~"}, {"*", "/", "//", "%"}, {"**"}}};

}  // namespace

ExpressionPtr ExpressionParser::Parse(bool conditional) {
  CheckDepth(++depth_, tokens_.Peek().position);
  ExpressionPtr value = ParseOr();
  while (conditional && tokens_.IsName("if")) {
    const Position position = tokens_.Next().position;
    ExpressionPtr condition = ParseOr();
    if (tokens_.TakeName("else")) {
      value = Make(ExpressionKind::kConditional, position, std::move(value), std::move(condition),
                   Parse());
    } else {
      value = Make(ExpressionKind::kConditional, position, std::move(value), std::move(condition));
    }
  }
  --depth_;
  return value;
}

ExpressionPtr ExpressionParser::ParseTuple(bool conditional) {
  const Position position = tokens_.Peek().position;
  ExpressionPtr first = Parse(conditional);
  if (!tokens_.IsOperator(",")) return first;
  ExpressionPtr tuple = Make(ExpressionKind::kTuple, position, std::move(first));
  while (tokens_.TakeOperator(",")) {
    const TokenType next = tokens_.Peek().type;
    if (next == TokenType::kTagEnd || next == TokenType::kOutputEnd || tokens_.IsOperator(")"))
      break;
    AddOperand(tuple.get(), Parse(conditional));
  }
  return tuple;
}

ExpressionPtr ExpressionParser::ParseOr() {
  ExpressionPtr left = ParseAnd();
  while (tokens_.IsName("or")) {
    const Position position = tokens_.Next().position;
    left = Make(ExpressionKind::kOr, position, std::move(left), ParseAnd());
  }
  return left;
}

ExpressionPtr ExpressionParser::ParseAnd() {
  ExpressionPtr left = ParseNot();
  while (tokens_.IsName("and")) {
    const Position position = tokens_.Next().position;
    left = Make(ExpressionKind::kAnd, position, std::move(left), ParseNot());
  }
  return left;
}

ExpressionPtr ExpressionParser::ParseNot() {
  if (!tokens_.IsName("not")) return ParseCompare();
  const Position position = tokens_.Next().position;
  CheckDepth(++depth_, position);
  ExpressionPtr negated = Make(ExpressionKind::kNot, position, ParseNot());
  --depth_;
  return negated;
}

ExpressionPtr ExpressionParser::ParseCompare() {
  static constexpr std::string_view kSymbols[] = {"==", "!=", "<", "<=", ">", ">="};
  ExpressionPtr first = ParseBinary(0);
  ExpressionPtr compare;
  for (;;) {
    const Token& token = tokens_.Peek();
    const Position position = token.position;
    std::string symbol;
    if (token.type == TokenType::kOperator &&
        std::ranges::find(kSymbols, token.text) != std::end(kSymbols)) {
      symbol = tokens_.Next().text;
    } else if (tokens_.TakeName("in")) {
      symbol = "in";
    } else if (tokens_.IsName("not") && tokens_.IsName("in", 1)) {
      tokens_.Next();
      tokens_.Next();
      symbol = "not in";
    } else {
      return compare != nullptr ? std::move(compare) : std::move(first);
    }
    if (compare == nullptr) {
      compare = Make(ExpressionKind::kCompare, position, std::move(first));
    }
    compare->symbols.push_back(symbol);
    AddOperand(compare.get(), ParseBinary(0));
  }
}

ExpressionPtr ExpressionParser::ParseBinary(size_t level) {
  if (level == kLevels.size()) return ParseUnary();
  const auto& symbols = kLevels[level];
  ExpressionPtr left = ParseBinary(level + 1);
  while (tokens_.Peek().type == TokenType::kOperator &&
         std::ranges::find(symbols, tokens_.Peek().text) != symbols.end()) {
    const Token symbol = tokens_.Next();
    ExpressionPtr right = ParseBinary(level + 1);
    if (symbol.text == "~" && left->kind == ExpressionKind::kConcatenate) {
      AddOperand(left.get(), std::move(right));
      continue;
    }
    const bool joins = symbol.text == "~";
    left = Make(joins ? ExpressionKind::kConcatenate : ExpressionKind::kArithmetic, symbol.position,
                std::move(left), std::move(right));
    left->name = symbol.text;
  }
  return left;
}

ExpressionPtr ExpressionParser::ParseUnary(bool with_filters) {
  const Position position = tokens_.Peek().position;
  CheckDepth(++depth_, position);
  ExpressionPtr operand;
  if (tokens_.TakeOperator("-")) {
    operand = Make(ExpressionKind::kNegative, position, ParseUnary(false));
  } else if (tokens_.TakeOperator("+")) {
    operand = Make(ExpressionKind::kPositive, position, ParseUnary(false));
  } else {
    operand = ParsePrimary();
  }
  operand = ParsePostfix(std::move(operand));
  if (with_filters) operand = ParseFiltersAndTests(std::move(operand));
  --depth_;
  return operand;
}

ExpressionPtr ExpressionParser::ParsePrimary() {
  const Token& token = tokens_.Peek();
  const Position position = token.position;
  switch (token.type) {
    case TokenType::kName:
      return ParseNameOrConstant();
    case TokenType::kString: {
      std::string text;
      while (tokens_.Peek().type == TokenType::kString) text += tokens_.Next().text;
      return Constant(position, Value::String(text));
    }
    case TokenType::kInteger:
    case TokenType::kFloat:
      return ParseNumber();
    default:
      break;
  }
  if (tokens_.IsOperator("[")) return ParseList();
  if (tokens_.IsOperator("{")) return ParseDict();
  if (!tokens_.TakeOperator("(")) FailAt(position, "expected a value, not ", Describe(token));
  if (tokens_.TakeOperator(")")) return Make(ExpressionKind::kTuple, position);
  ExpressionPtr inner = ParseTuple();
  tokens_.RequireOperator(")");
  return inner;
}

ExpressionPtr ExpressionParser::ParseNumber() {
  const Token token = tokens_.Next();
  const char* end = token.text.data() + token.text.size();
  if (token.type == TokenType::kFloat) {
    return Constant(token.position, Value::Float(std::strtod(token.text.c_str(), nullptr)));
  }
  int64_t integer = 0;
  if (std::from_chars(token.text.data(), end, integer).ec != std::errc()) {
    FailAt(token.position, "the integer ", token.text, " does not fit in 64 bits");
  }
  return Constant(token.position, Value::Int(integer));
}

ExpressionPtr ExpressionParser::ParseNameOrConstant() {
  const Token token = tokens_.Next();
  const std::string& name = token.text;
  if (name == "true" || name == "True") return Constant(token.position, Value::Bool(true));
  if (name == "false" || name == "False") return Constant(token.position, Value::Bool(false));
  if (name == "none" || name == "None") return Constant(token.position, Value());
  ExpressionPtr expression = Make(ExpressionKind::kName, token.position);
  expression->name = name;
  return expression;
}

ExpressionPtr ExpressionParser::ParseList() {
  ExpressionPtr list = Make(ExpressionKind::kList, tokens_.Next().position);
  while (!tokens_.TakeOperator("]")) {
    if (!list->operands.empty()) {
      tokens_.RequireOperator(",");
      if (tokens_.TakeOperator("]")) break;
    }
    AddOperand(list.get(), Parse());
  }
  return list;
}

ExpressionPtr ExpressionParser::ParseDict() {
  ExpressionPtr dict = Make(ExpressionKind::kDict, tokens_.Next().position);
  while (!tokens_.TakeOperator("}")) {
    if (!dict->operands.empty()) {
      tokens_.RequireOperator(",");
      if (tokens_.TakeOperator("}")) break;
    }
    AddOperand(dict.get(), Parse());
    tokens_.RequireOperator(":");
    AddOperand(dict.get(), Parse());
  }
  return dict;
}

ExpressionPtr ExpressionParser::ParsePostfix(ExpressionPtr operand) {
  for (;;) {
    const Position position = tokens_.Peek().position;
    if (tokens_.TakeOperator(".")) {
      const Token token = tokens_.Peek();
      if (token.type == TokenType::kInteger) {
        operand = Make(ExpressionKind::kItem, position, std::move(operand), ParseNumber());
      } else {
        const std::string name = tokens_.RequireAnyName("the name of an attribute");
        operand = Make(ExpressionKind::kAttribute, position, std::move(operand));
        operand->name = name;
      }
    } else if (tokens_.TakeOperator("[")) {
      operand = ParseSubscript(std::move(operand));
    } else if (tokens_.IsOperator("(")) {
      operand = Make(ExpressionKind::kCall, position, std::move(operand));
      ParseArguments(operand.get());
    } else {
      return operand;
    }
  }
}

ExpressionPtr ExpressionParser::ParseSubscript(ExpressionPtr operand) {
  const Position position = tokens_.Peek().position;
  std::vector<ExpressionPtr> bounds;
  if (!tokens_.IsOperator(":")) {
    ExpressionPtr key = ParseTuple();
    if (tokens_.TakeOperator("]")) {
      return Make(ExpressionKind::kItem, position, std::move(operand), std::move(key));
    }
    bounds.push_back(std::move(key));
  } else {
    bounds.push_back(Constant(position, Value()));
  }
  while (bounds.size() < 3 && tokens_.TakeOperator(":")) {
    const bool absent = tokens_.IsOperator(":") || tokens_.IsOperator("]");
    bounds.push_back(absent ? Constant(position, Value()) : Parse());
  }
  if (bounds.size() < 3) bounds.push_back(Constant(position, Value()));
  tokens_.RequireOperator("]");
  return Make(ExpressionKind::kSlice, position, std::move(operand), std::move(bounds[0]),
              std::move(bounds[1]), std::move(bounds[2]));
}

ExpressionPtr ExpressionParser::ParseFiltersAndTests(ExpressionPtr operand) {
  for (;;) {
    if (tokens_.IsOperator("|")) {
      operand = ParseFilter(std::move(operand));
    } else if (tokens_.IsName("is")) {
      operand = ParseTest(std::move(operand));
    } else if (tokens_.IsOperator("(")) {
      operand = Make(ExpressionKind::kCall, tokens_.Peek().position, std::move(operand));
      ParseArguments(operand.get());
    } else {
      return operand;
    }
  }
}

ExpressionPtr ExpressionParser::ParseFilters(ExpressionPtr operand) {
  while (tokens_.IsOperator("|")) operand = ParseFilter(std::move(operand));
  return operand;
}

ExpressionPtr ExpressionParser::ParseFilter(ExpressionPtr operand) {
  const Position position = tokens_.Next().position;
  ExpressionPtr filter = Make(ExpressionKind::kFilter, position, std::move(operand));
  filter->name = tokens_.RequireAnyName("the name of a filter");
  try {
    RequireFilter(filter->name);
  } catch (const TemplateFailure& failure) {
    FailAt(position, failure.what());
  }
  if (tokens_.IsOperator("(")) ParseArguments(filter.get());
  return filter;
}

ExpressionPtr ExpressionParser::ParseTest(ExpressionPtr operand) {
  const Position position = tokens_.Next().position;
  const bool negated = tokens_.TakeName("not");
  ExpressionPtr test = Make(ExpressionKind::kTest, position, std::move(operand));
  test->name = tokens_.RequireAnyName("the name of a test");
  try {
    RequireTest(test->name);
  } catch (const TemplateFailure& failure) {
    FailAt(position, failure.what());
  }
  const TokenType next = tokens_.Peek().type;
  const bool value = next == TokenType::kString || next == TokenType::kInteger ||
                     next == TokenType::kFloat || tokens_.IsOperator("[") ||
                     tokens_.IsOperator("{");
  const bool name = next == TokenType::kName && !tokens_.IsName("else") && !tokens_.IsName("or") &&
                    !tokens_.IsName("and") && !tokens_.IsName("if") && !tokens_.IsName("is") &&
                    !tokens_.IsName("in") && !tokens_.IsName("not") && !tokens_.IsName("recursive");
  if (tokens_.IsOperator("(")) {
    ParseArguments(test.get());
  } else if (value || name) {
    test->arguments.push_back(ParsePostfix(ParsePrimary()));
    test->depth = std::max(test->depth, test->arguments[0]->depth + 1);
    CheckDepth(test->depth, position);
  }
  return negated ? Make(ExpressionKind::kNot, position, std::move(test)) : std::move(test);
}

void ExpressionParser::ParseArguments(Expression* call) {
  const Position position = tokens_.Next().position;
  bool first = true;
  while (!tokens_.TakeOperator(")")) {
    if (!std::exchange(first, false)) {
      tokens_.RequireOperator(",");
      if (tokens_.TakeOperator(")")) break;
    }
    const Position at = tokens_.Peek().position;
    if (tokens_.IsOperator("*") || tokens_.IsOperator("**")) {
      FailAt(at, "arguments with * and ** are not supported");
    }
    std::string name;
    if (tokens_.Peek().type == TokenType::kName && tokens_.IsOperator("=", 1)) {
      name = tokens_.Next().text;
      tokens_.Next();
    } else if (!call->named.empty()) {
      FailAt(at, "an argument without a name follows one with a name");
    }
    ExpressionPtr value = Parse();
    call->depth = std::max(call->depth, value->depth + 1);
    CheckDepth(call->depth, position);
    if (name.empty()) {
      call->arguments.push_back(std::move(value));
    } else {
      call->named.emplace_back(name, std::move(value));
    }
    if (call->arguments.size() + call->named.size() > kMaxArguments) {
      FailAt(position, "a call has more than ", kMaxArguments, " arguments");
    }
  }
}

}  // namespace lockstep::data::chat
