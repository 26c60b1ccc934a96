#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <initializer_list>
#include <utility>

#include "data/chat/syntax.h"

namespace lockstep::data::chat {
namespace {

using enum ExpressionKind;

constexpr size_t kMaxArguments = 100;

// Tags of Jinja that chat templates do not use.
constexpr std::string_view kUnsupportedTags[] = {"autoescape", "block",  "call",  "do",
                                                 "extends",    "filter", "from",  "import",
                                                 "include",    "print",  "trans", "with"};

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

// For messages.
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

template <class... Operands>
ExpressionPtr Make(ExpressionKind kind, const Position& position, Operands... operands) {
  auto expression = std::make_unique<Expression>();
  expression->kind = kind;
  expression->position = position;
  (AddOperand(expression.get(), std::move(operands)), ...);
  return expression;
}

ExpressionPtr Constant(const Position& position, Value value) {
  ExpressionPtr expression = Make(kConstant, position);
  expression->constant = std::move(value);
  return expression;
}

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Syntax Run() {
    Block block = ParseBlock({}, {});
    return {std::move(block), has_generation_};
  }

 private:
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
    if (!Take(text)) FailAt(Peek().position, "expected '", text, "', not ", Describe(Peek()));
  }
  std::string RequireName(std::string_view what) {
    if (Peek().type == TokenType::kName) return Next().text;
    FailAt(Peek().position, "expected ", what, ", not ", Describe(Peek()));
  }
  // A name that is no constant.
  std::string RequireVariable(std::string_view what) {
    const Position position = Peek().position;
    const std::string name = RequireName(what);
    if (ConstantOf(name)) {
      FailAt(position, "'", name, "' is a constant and cannot be assigned to");
    }
    return name;
  }
  static std::optional<Value> ConstantOf(const std::string& name) {
    if (name == "true" || name == "True") return Value::Bool(true);
    if (name == "false" || name == "False") return Value::Bool(false);
    if (name == "none" || name == "None") return Value();
    return std::nullopt;
  }

  // Expressions. With `conditional` false, a following `if` is not part of it.
  ExpressionPtr Parse(bool conditional = true) {
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
  ExpressionPtr ParseTuple(bool conditional = true) {
    const Position position = Peek().position;
    ExpressionPtr first = Parse(conditional);
    if (!Is(",")) return first;
    ExpressionPtr tuple = Make(kTuple, position, std::move(first));
    while (Take(",") && !Is("%}") && !Is("}}") && !Is(")")) {
      AddOperand(tuple.get(), Parse(conditional));
    }
    return tuple;
  }

  // The binary operator that is next, or nullptr.
  const Operator* PeekOperator() const {
    const bool not_in = Is("not") && Is("in", 1);
    for (const Operator& op : kOperators) {
      if (not_in ? op.symbol == "not in" : Is(op.symbol)) return &op;
    }
    return nullptr;
  }

  // Operators of at least this precedence.
  ExpressionPtr ParseBinary(int least) {
    ExpressionPtr left = least <= kNotPrecedence && Is("not") ? ParseNot() : ParseUnary();
    const Expression* chain = nullptr;  // the comparison that goes on
    for (const Operator* op = PeekOperator(); op != nullptr && op->precedence >= least;
         op = PeekOperator()) {
      const Position position = Next().position;
      if (op->symbol == "not in") Next();
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
    return left;
  }

  ExpressionPtr ParseNot() {
    const Position position = Next().position;
    CheckDepth(++depth_, position);
    ExpressionPtr negated = Make(kNot, position, ParseBinary(kNotPrecedence));
    --depth_;
    return negated;
  }

  ExpressionPtr ParseUnary(bool with_filters = true) {
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

  ExpressionPtr ParsePrimary() {
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

  ExpressionPtr ParseInteger() {
    const Token token = Next();
    int64_t integer = 0;
    const char* end = token.text.data() + token.text.size();
    if (std::from_chars(token.text.data(), end, integer).ec != std::errc()) {
      FailAt(token.position, "the integer ", token.text, " does not fit in 64 bits");
    }
    return Constant(token.position, Value::Int(integer));
  }

  // Of a list or dict, and its end.
  ExpressionPtr ParseElements(ExpressionPtr whole, std::string_view end) {
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

  ExpressionPtr ParsePostfix(ExpressionPtr operand) {
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

  ExpressionPtr ParseSubscript(ExpressionPtr operand) {
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
  ExpressionPtr ParseFilters(ExpressionPtr operand) {
    while (Is("|")) {
      operand = Make(kFilter, Next().position, std::move(operand));
      NameBuiltin(operand.get(), BuiltinKind::kFilter);
      if (Is("(")) ParseArguments(operand.get());
    }
    return operand;
  }

  ExpressionPtr ParseTest(ExpressionPtr operand) {
    const Position position = Next().position;
    const bool negated = Take("not");
    ExpressionPtr test = Make(kTest, position, std::move(operand));
    NameBuiltin(test.get(), BuiltinKind::kTest);
    static constexpr std::string_view kAfterTest[] = {"else", "or", "and", "if",
                                                      "is",   "in", "not", "recursive"};
    const bool is_value =
        Peek().type == TokenType::kOperator
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

  void NameBuiltin(Expression* expression, BuiltinKind kind) {
    expression->name =
        RequireName(kind == BuiltinKind::kFilter ? "the name of a filter" : "the name of a test");
    try {
      expression->builtin = &RequireBuiltin(kind, expression->name);
    } catch (const TemplateFailure& failure) {
      FailAt(expression->position, failure.what());
    }
  }

  ExpressionPtr ParseCall(ExpressionPtr function) {
    ExpressionPtr call = Make(kCall, Peek().position, std::move(function));
    ParseArguments(call.get());
    return call;
  }

  void ParseArguments(Expression* call) {
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

  // Statements, up to the tag of one of these names, whose name is the next token.
  Block ParseBlock(std::initializer_list<std::string_view> ends, const Position& begin) {
    CheckDepth(++block_depth_, begin);
    Block block;
    for (;;) {
      const Token token = Next();
      if (token.type == TokenType::kText) {
        block.push_back({StatementKind::kText, token.position, token.text});
      } else if (token.text == "{{") {
        block.push_back({StatementKind::kOutput, token.position, ""});
        block.back().expressions.push_back(ParseTuple());
        Require("}}");
      } else if (token.text == "{%") {
        if (std::ranges::any_of(ends, [&](std::string_view end) { return Is(end); })) break;
        block.push_back(ParseTag());
        Require("%}");
      } else {
        if (ends.size() == 0) break;
        FailAt(begin, "this tag has no {% ", *(ends.end() - 1), " %}");
      }
    }
    --block_depth_;
    return block;
  }

  // The same from the end of the opening tag; `ends` as above.
  Block ParseBody(std::initializer_list<std::string_view> ends, const Position& begin) {
    Take(":");
    Require("%}");
    return ParseBlock(ends, begin);
  }

  // A block whose loops are its own, up to its end: break and continue cannot leave it.
  Block ParseClosedBody(std::string_view end, const Position& begin) {
    const int loops = std::exchange(loops_, 0);
    ++not_top_level_;
    Block block = ParseBody({end}, begin);
    Require(end);
    --not_top_level_;
    loops_ = loops;
    return block;
  }

  Statement ParseTag() {
    const Position position = Peek().position;
    const std::string name = RequireName("the name of a tag");
    if (name == "for") return ParseFor(position);
    if (name == "if") return ParseIf(position);
    if (name == "set") return ParseSet(position);
    if (name == "macro") return ParseMacro(position);
    if (name == "generation") return ParseGeneration(position);
    if (name == "break" || name == "continue") {
      if (loops_ > 0) {
        return {name == "break" ? StatementKind::kBreak : StatementKind::kContinue, position, ""};
      }
      FailAt(position, "'", name,
             "' is outside of a loop, or in a macro, set block or generation block within it");
    }
    if (std::ranges::find(kUnsupportedTags, name) != std::end(kUnsupportedTags)) {
      FailAt(position, "the tag '", name, "' is not supported in chat templates");
    }
    FailAt(position, "the tag '", name,
           "' is unknown, or closes no open tag; there are for, if, set, macro, generation, break, "
           "continue and raw");
  }

  Statement ParseFor(const Position& position) {
    Statement loop{StatementKind::kFor, position, ""};
    loop.target = ParseTarget(/*attributes=*/false);
    if (loop.target->name == "loop") FailAt(loop.target->position, "'loop' is the loop's state");
    Require("in");
    loop.expressions.push_back(ParseTuple(/*conditional=*/false));
    if (Take("if")) loop.expressions.push_back(Parse());
    if (Is("recursive")) {
      FailAt(Peek().position, "recursive loops are not supported; use a macro");
    }
    ++loops_;
    loop.blocks.push_back(ParseBody({"else", "endfor"}, position));
    --loops_;
    loop.blocks.push_back(Take("else") ? ParseBody({"endfor"}, position) : Block());
    Require("endfor");
    return loop;
  }

  Statement ParseIf(const Position& position) {
    Statement statement{StatementKind::kIf, position, ""};
    do {
      statement.expressions.push_back(ParseTuple(/*conditional=*/false));
      statement.blocks.push_back(ParseBody({"elif", "else", "endif"}, position));
    } while (Take("elif"));
    if (Take("else")) statement.blocks.push_back(ParseBody({"endif"}, position));
    Require("endif");
    return statement;
  }

  Statement ParseSet(const Position& position) {
    Statement set{StatementKind::kSet, position, ""};
    set.target = ParseTarget(/*attributes=*/true);
    if (Take("=")) {
      set.expressions.push_back(ParseTuple());
      return set;
    }
    set.kind = StatementKind::kSetBlock;
    if (Is("|")) set.expressions.push_back(ParseFilters(nullptr));
    set.blocks.push_back(ParseClosedBody("endset", position));
    return set;
  }

  Statement ParseMacro(const Position& position) {
    Statement macro{StatementKind::kMacro, position, RequireVariable("the name of the macro")};
    Require("(");
    while (!Take(")")) {
      if (!macro.names.empty()) Require(",");
      const Position at = Peek().position;
      const std::string name = RequireVariable("the name of a parameter");
      if (std::ranges::find(macro.names, name) != macro.names.end()) {
        FailAt(at, "two parameters are named '", name, "'");
      }
      const bool needs_default = !macro.names.empty() && macro.expressions.back() != nullptr;
      if (!Is("=") && needs_default) {
        FailAt(at, "the parameter '", name, "' needs a default as the one before has one");
      }
      macro.names.push_back(name);
      macro.expressions.push_back(Take("=") ? Parse() : nullptr);
    }
    macro.blocks.push_back(ParseClosedBody("endmacro", position));
    return macro;
  }

  Statement ParseGeneration(const Position& position) {
    if (not_top_level_ > 0) {
      FailAt(position,
             "a generation block within a macro, a set block or another generation block cannot "
             "be located in the text; move it out");
    }
    has_generation_ = true;
    Statement generation{StatementKind::kGeneration, position, ""};
    generation.blocks.push_back(ParseClosedBody("endgeneration", position));
    return generation;
  }

  // What is assigned to; with `attributes`, also attributes of namespaces.
  ExpressionPtr ParseTarget(bool attributes) {
    const Position position = Peek().position;
    ExpressionPtr first = ParseTargetPart(attributes);
    if (!Is(",")) return first;
    ExpressionPtr tuple = Make(kTuple, position, std::move(first));
    while (Take(",") && !Is("in") && !Is("=") && !Is(")")) {
      AddOperand(tuple.get(), ParseTargetPart(attributes));
    }
    return tuple;
  }

  ExpressionPtr ParseTargetPart(bool attributes) {
    const Position position = Peek().position;
    if (Take("(")) {
      CheckDepth(++depth_, position);
      ExpressionPtr inner = ParseTarget(attributes);
      --depth_;
      Require(")");
      return inner;
    }
    ExpressionPtr target = Make(kName, position);
    target->name = RequireVariable("a name to assign to");
    if (!attributes || !Take(".")) return target;
    target = Make(kAttribute, position, std::move(target));
    target->name = RequireName("the name of an attribute");
    return target;
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;  // of the expression
  int block_depth_ = 0;
  int loops_ = 0;          // around, that break can leave
  int not_top_level_ = 0;  // set blocks, macros and generation blocks around
  bool has_generation_ = false;
};

}  // namespace

Syntax Parse(std::string_view source) { return Parser(Tokenize(source)).Run(); }

}  // namespace lockstep::data::chat
