#include <charconv>
#include <cstdlib>

#include "data/chat/parser.h"

namespace lockstep::data::chat {
namespace {

using enum ExpressionKind;

constexpr size_t kMaxArguments = 100;

// Binary operators, from the weakest; all group to the left. `not` is between `and` and `==`.
struct Operator {
  std::string_view symbol;
  int precedence;
  ExpressionKind kind;
};
constexpr int kNotPrecedence = 3;
constexpr Operator kOperators[] = {
    {"or", 1, kOr},         {"and", 2, kAnd},        {"==", 4, kCompare},   {"!=", 4, kCompare},
    {"<", 4, kCompare},     {"<=", 4, kCompare},     {">", 4, kCompare},    {">=", 4, kCompare},
    {"in", 4, kCompare},    {"not in", 4, kCompare}, {"+", 5, kArithmetic}, {"-", 5, kArithmetic},
    {"~", 6, kConcatenate}, {"*", 7, kArithmetic},   {"/", 7, kArithmetic}, {"//", 7, kArithmetic},
    {"%", 7, kArithmetic},  {"**", 8, kArithmetic}};

ExpressionPtr Constant(const Position& position, Value value) {
  ExpressionPtr expression = Make(kConstant, position);
  expression->constant = std::move(value);
  return expression;
}

}  // namespace

std::string Describe(const Token& token) {
  if (token.type == TokenType::kEnd) return "the end of the template";
  if (token.type == TokenType::kText) return "text";
  if (token.type == TokenType::kString) return "a text";
  return token.text == "%}" ? "the end of the tag" : "'" + token.text + "'";
}

void CheckDepth(int depth, const Position& position) {
  if (depth > kMaxSyntaxDepth) {
    FailAt(position, "expressions or tags are nested deeper than ", kMaxSyntaxDepth, " levels");
  }
}

void AddOperand(Expression* expression, ExpressionPtr operand) {
  if (operand != nullptr) {
    expression->depth = std::max(expression->depth, operand->depth + 1);
    CheckDepth(expression->depth, expression->position);
  }
  expression->operands.push_back(std::move(operand));
}

std::optional<Value> ExpressionParser::ConstantOf(const std::string& name) {
  if (name == "true" || name == "True") return Value::Bool(true);
  if (name == "false" || name == "False") return Value::Bool(false);
  if (name == "none" || name == "None") return Value();
  return std::nullopt;
}

ExpressionPtr ExpressionParser::Parse(bool conditional) {
  CheckDepth(++depth_, Peek().position);
  ExpressionPtr value = ParseBinary(1);
  while (conditional && Is("if")) {
    const Position position = Next().position;
    value = Make(kConditional, position, std::move(value), ParseBinary(1));
    if (Take("else")) AddOperand(value.get(), Parse());
  }
  --depth_;
  return value;
}

// One expression, or several with commas between them: a tuple.
ExpressionPtr ExpressionParser::ParseTuple(bool conditional) {
  const Position position = Peek().position;
  ExpressionPtr first = Parse(conditional);
  if (!Is(",")) return first;
  ExpressionPtr tuple = Make(kTuple, position, std::move(first));
  while (Take(",") && !Is("%}") && !Is("}}") && !Is(")")) {
    AddOperand(tuple.get(), Parse(conditional));
  }
  return tuple;
}

ExpressionPtr ExpressionParser::ParseBinary(int least) {
  ExpressionPtr left = least <= kNotPrecedence && Is("not") ? ParseNot() : ParseUnary();
  const Expression* chain = nullptr;  // the comparison that continues
  for (;;) {
    const bool not_in = Is("not") && Is("in", 1);
    const auto op = std::ranges::find_if(kOperators, [&](const Operator& candidate) {
      return not_in ? candidate.symbol == "not in" : Is(candidate.symbol);
    });
    if (op == std::end(kOperators) || op->precedence < least) return left;
    const Position position = Next().position;
    if (not_in) Next();
    ExpressionPtr right = ParseBinary(op->precedence + 1);
    // a < b < c and a ~ b ~ c are one expression each.
    const bool joins = left->kind == op->kind && op->kind == kConcatenate;
    const bool chains = op->kind == kCompare && left.get() == chain;
    if (joins || chains) {
      AddOperand(left.get(), std::move(right));
    } else {
      left = Make(op->kind, position, std::move(left), std::move(right));
      left->name = op->symbol;
    }
    if (op->kind == kCompare) {
      left->names.emplace_back(op->symbol);
      chain = left.get();
    }
  }
}

ExpressionPtr ExpressionParser::ParseNot() {
  const Position position = Next().position;
  CheckDepth(++depth_, position);
  ExpressionPtr negated = Make(kNot, position, ParseBinary(kNotPrecedence));
  --depth_;
  return negated;
}

ExpressionPtr ExpressionParser::ParseUnary(bool with_filters) {
  const Position position = Peek().position;
  CheckDepth(++depth_, position);
  ExpressionPtr operand;
  if (Take("-")) {
    operand = Make(kNegative, position, ParseUnary(false));
  } else if (Take("+")) {
    operand = Make(kNegative, position, Make(kNegative, position, ParseUnary(false)));
  } else {
    operand = ParsePrimary();
  }
  operand = ParsePostfix(std::move(operand));
  while (with_filters) {
    if (Is("|")) {
      operand = ParseFilters(std::move(operand));
    } else if (Is("is")) {
      operand = ParseTest(std::move(operand));
    } else if (Is("(")) {
      operand = ParseCall(std::move(operand));
    } else {
      break;
    }
  }
  --depth_;
  return operand;
}

ExpressionPtr ExpressionParser::ParsePrimary() {
  const Position position = Peek().position;
  if (Peek().type == TokenType::kString) {
    std::string text;
    while (Peek().type == TokenType::kString) text += Next().text;
    return Constant(position, Value::String(text));
  }
  if (Peek().type == TokenType::kFloat) {
    return Constant(position, Value::Float(std::strtod(Next().text.c_str(), nullptr)));
  }
  if (Peek().type == TokenType::kInteger) return ParseInteger();
  if (Peek().type == TokenType::kName) {
    const std::string name = Next().text;
    if (std::optional<Value> constant = ConstantOf(name)) return Constant(position, *constant);
    ExpressionPtr expression = Make(kName, position);
    expression->name = name;
    return expression;
  }
  if (Take("[")) return ParseElements(Make(kList, position), "]");
  if (Take("{")) return ParseElements(Make(kDict, position), "}");
  if (!Take("(")) FailAt(position, "expected a value, not ", Describe(Peek()));
  if (Take(")")) return Make(kTuple, position);
  ExpressionPtr inner = ParseTuple();
  Require(")");
  return inner;
}

ExpressionPtr ExpressionParser::ParseInteger() {
  const Token token = Next();
  int64_t integer = 0;
  const char* end = token.text.data() + token.text.size();
  if (std::from_chars(token.text.data(), end, integer).ec != std::errc()) {
    FailAt(token.position, "the integer ", token.text, " does not fit in 64 bits");
  }
  return Constant(token.position, Value::Int(integer));
}

// Parses the elements of a list or dict, and its end.
ExpressionPtr ExpressionParser::ParseElements(ExpressionPtr whole, std::string_view end) {
  while (!Take(end)) {
    if (!whole->operands.empty()) {
      Require(",");
      if (Take(end)) break;
    }
    AddOperand(whole.get(), Parse());
    if (whole->kind != kDict) continue;
    Require(":");
    AddOperand(whole.get(), Parse());
  }
  return whole;
}

ExpressionPtr ExpressionParser::ParsePostfix(ExpressionPtr operand) {
  for (;;) {
    const Position position = Peek().position;
    if (Take(".")) {
      if (Peek().type == TokenType::kInteger) {
        operand = Make(kItem, position, std::move(operand), ParseInteger());
      } else {
        operand = Make(kAttribute, position, std::move(operand));
        operand->name = RequireName("the name of an attribute");
      }
    } else if (Take("[")) {
      operand = ParseSubscript(std::move(operand));
    } else if (Is("(")) {
      operand = ParseCall(std::move(operand));
    } else {
      return operand;
    }
  }
}

ExpressionPtr ExpressionParser::ParseSubscript(ExpressionPtr operand) {
  const Position position = Peek().position;
  ExpressionPtr bounds[3];
  if (!Is(":")) bounds[0] = ParseTuple();
  if (bounds[0] != nullptr && Take("]")) {
    return Make(kItem, position, std::move(operand), std::move(bounds[0]));
  }
  for (int i = 1; i < 3 && Take(":"); ++i) {
    if (!Is(":") && !Is("]")) bounds[i] = Parse();
  }
  Require("]");
  for (ExpressionPtr& bound : bounds) {
    if (bound == nullptr) bound = Constant(position, Value());
  }
  return Make(kSlice, position, std::move(operand), std::move(bounds[0]), std::move(bounds[1]),
              std::move(bounds[2]));
}

// `|filter|filter...`; without an operand for set blocks.
ExpressionPtr ExpressionParser::ParseFilters(ExpressionPtr operand) {
  while (Is("|")) {
    operand = Make(kFilter, Next().position, std::move(operand));
    NameBuiltin(operand.get(), BuiltinKind::kFilter);
    if (Is("(")) ParseArguments(operand.get());
  }
  return operand;
}

ExpressionPtr ExpressionParser::ParseTest(ExpressionPtr operand) {
  const Position position = Next().position;
  const bool negated = Take("not");
  ExpressionPtr test = Make(kTest, position, std::move(operand));
  NameBuiltin(test.get(), BuiltinKind::kTest);
  static constexpr std::string_view kAfterTest[] = {"else", "or", "and", "if",
                                                    "is",   "in", "not", "recursive"};
  const bool is_value = Peek().type == TokenType::kOperator
                            ? Is("[") || Is("{")
                            : !std::ranges::any_of(kAfterTest, [&](auto name) { return Is(name); });
  if (Is("(")) {
    ParseArguments(test.get());
  } else if (is_value) {
    AddOperand(test.get(), ParsePostfix(ParsePrimary()));
    test->names.emplace_back();
  }
  return negated ? Make(kNot, position, std::move(test)) : std::move(test);
}

void ExpressionParser::NameBuiltin(Expression* expression, BuiltinKind kind) {
  expression->name =
      RequireName(kind == BuiltinKind::kFilter ? "the name of a filter" : "the name of a test");
  try {
    expression->builtin = &RequireBuiltin(kind, expression->name);
  } catch (const TemplateFailure& failure) {
    FailAt(expression->position, failure.what());
  }
}

ExpressionPtr ExpressionParser::ParseCall(ExpressionPtr function) {
  ExpressionPtr call = Make(kCall, Peek().position, std::move(function));
  ParseArguments(call.get());
  return call;
}

void ExpressionParser::ParseArguments(Expression* call) {
  const Position position = Next().position;
  while (!Take(")")) {
    if (!call->names.empty()) {
      Require(",");
      if (Take(")")) break;
    }
    const Position at = Peek().position;
    if (Is("*") || Is("**")) FailAt(at, "arguments with * and ** are not supported");
    std::string name;
    if (Peek().type == TokenType::kName && Is("=", 1)) {
      name = Next().text;
      Next();
    } else if (!call->names.empty() && !call->names.back().empty()) {
      FailAt(at, "an argument without a name follows one with a name");
    }
    AddOperand(call, Parse());
    call->names.push_back(name);
    if (call->names.size() > kMaxArguments) {
      FailAt(position, "a call has more than ", kMaxArguments, " arguments");
    }
  }
}

}  // namespace lockstep::data::chat
