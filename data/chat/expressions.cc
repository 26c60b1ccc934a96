#include <algorithm>

#include "data/chat/builtins.h"
#include "data/chat/evaluator.h"
#include "data/chat/methods.h"
#include "data/chat/operators.h"

namespace lockstep::data::chat {
namespace {

bool Holds(const std::string& symbol, const Value& a, const Value& b) {
  if (symbol == "==") return Equal(a, b);
  if (symbol == "!=") return !Equal(a, b);
  if (symbol == "<") return Less(a, b);
  if (symbol == "<=") return LessOrEqual(a, b, "<=");
  if (symbol == ">") return Less(b, a, ">");
  if (symbol == ">=") return LessOrEqual(b, a, ">=");
  return Contains(b, a) == (symbol == "in");
}

}  // namespace

Value Evaluator::Evaluate(const Expression& expression) {
  const Position outer = position_;
  Enter(expression.position);
  Value value = EvaluateKind(expression);
  --depth_;
  position_ = outer;
  return value;
}

Value Evaluator::EvaluateKind(const Expression& expression) {
  const auto operand = [&](size_t i) { return Evaluate(*expression.operands[i]); };
  switch (expression.kind) {
    case ExpressionKind::kConstant:
      return expression.constant;
    case ExpressionKind::kName:
      return EvaluateName(expression);
    case ExpressionKind::kList:
      return Value::Of(Kind::kList, EvaluateAll(expression.operands));
    case ExpressionKind::kTuple:
      return Value::Of(Kind::kTuple, EvaluateAll(expression.operands));
    case ExpressionKind::kDict:
      return EvaluateDict(expression);
    case ExpressionKind::kAttribute:
      return GetAttribute(operand(0), expression.name);
    case ExpressionKind::kItem: {
      const Value object = operand(0);
      return GetItem(object, operand(1));
    }
    case ExpressionKind::kSlice: {
      const List parts = EvaluateAll(expression.operands);
      return GetSlice(parts[0], parts[1], parts[2], parts[3]);
    }
    case ExpressionKind::kCall:
      return EvaluateCall(expression);
    case ExpressionKind::kFilter:
      return EvaluateFilter(expression);
    case ExpressionKind::kTest: {
      const Value value = operand(0);
      return Value::Bool(ApplyTest(expression.name, value, EvaluateArguments(expression)));
    }
    case ExpressionKind::kNegative:
      return Negate(operand(0));
    case ExpressionKind::kPositive:
      return Negate(Negate(operand(0)));
    case ExpressionKind::kNot:
      return Value::Bool(!Truthy(operand(0)));
    case ExpressionKind::kAnd:
    case ExpressionKind::kOr: {
      Value left = operand(0);
      const bool decided = Truthy(left) == (expression.kind == ExpressionKind::kOr);
      return decided ? left : operand(1);
    }
    case ExpressionKind::kCompare:
      return EvaluateCompare(expression);
    case ExpressionKind::kArithmetic: {
      const Value left = operand(0);
      return Arithmetic(expression.name, left, operand(1));
    }
    case ExpressionKind::kConcatenate:
      return EvaluateConcatenation(expression);
    case ExpressionKind::kConditional:
      return EvaluateConditional(expression);
  }
  LS_INVARIANT(false, "an expression of unknown kind");
}

Value Evaluator::EvaluateName(const Expression& expression) const {
  if (const Value* value = scope_->Find(expression.name)) return *value;
  for (const char* name : {"caller", "varargs", "kwargs", "cycler", "joiner", "lipsum"}) {
    if (expression.name == name) Fail("'", name, "' is not supported in chat templates");
  }
  return Value::Undefined("'" + expression.name + "' is undefined");
}

List Evaluator::EvaluateAll(const std::vector<ExpressionPtr>& expressions) {
  List values;
  for (const ExpressionPtr& expression : expressions) values.push_back(Evaluate(*expression));
  return values;
}

Value Evaluator::EvaluateDict(const Expression& expression) {
  const List parts = EvaluateAll(expression.operands);
  std::vector<std::pair<Value, Value>> items;
  for (size_t i = 0; i < parts.size(); i += 2) items.emplace_back(parts[i], parts[i + 1]);
  return Value::Mapping(items);
}

Value Evaluator::EvaluateCompare(const Expression& expression) {
  Value left = Evaluate(*expression.operands[0]);
  for (size_t i = 0; i < expression.symbols.size(); ++i) {
    Value right = Evaluate(*expression.operands[i + 1]);
    if (!Holds(expression.symbols[i], left, right)) return Value::Bool(false);
    left = std::move(right);
  }
  return Value::Bool(true);
}

Value Evaluator::EvaluateConcatenation(const Expression& expression) {
  std::string text;
  for (const ExpressionPtr& operand : expression.operands) {
    text += Str(Evaluate(*operand));
    RequireTextFits(text.size());
  }
  return Value::String(std::move(text));
}

Value Evaluator::EvaluateConditional(const Expression& expression) {
  if (Truthy(Evaluate(*expression.operands[1]))) return Evaluate(*expression.operands[0]);
  if (expression.operands.size() == 3) return Evaluate(*expression.operands[2]);
  return Value::Undefined("the inline if-expression is false and has no else");
}

Value Evaluator::EvaluateFilter(const Expression& expression) {
  const Expression* operand = expression.operands[0].get();
  const Value value = operand != nullptr ? Evaluate(*operand) : *block_value_;
  return ApplyFilter(expression.name, value, EvaluateArguments(expression));
}

Arguments Evaluator::EvaluateArguments(const Expression& call) {
  Arguments arguments;
  arguments.positional = EvaluateAll(call.arguments);
  for (const auto& [name, value] : call.named) arguments.named.emplace_back(name, Evaluate(*value));
  return arguments;
}

Value Evaluator::EvaluateCall(const Expression& expression) {
  const Value callee = Evaluate(*expression.operands[0]);
  const Arguments arguments = EvaluateArguments(expression);
  RequireDefined(callee);
  if (callee.Is(Kind::kMethod)) return CallMethod(callee.method(), arguments);
  Object* const object = callee.Is(Kind::kObject) ? callee.object() : nullptr;
  if (const auto* macro = dynamic_cast<MacroObject*>(object)) return CallMacro(*macro, arguments);
  if (const auto* function = dynamic_cast<FunctionObject*>(object)) {
    return function->Call(arguments);
  }
  Fail("'", TypeName(callee), "' object is not callable");
}

void Evaluator::DefineFunctions(int64_t now) {
  const auto define = [this](const char* name, FunctionObject::Body body) {
    scope_->Set(name, Value::Of(Own<FunctionObject>(std::move(body))));
  };
  define("dict", MakeDict);
  define("namespace", [this](const Arguments& arguments) { return MakeNamespace(arguments); });
  define("raise_exception", [](const Arguments& arguments) -> Value { RaiseException(arguments); });
  define("range", Range);
  define("strftime_now", [now](const Arguments& arguments) { return StrftimeNow(arguments, now); });
}

Value Evaluator::MakeNamespace(const Arguments& arguments) {
  auto* space = Own<NamespaceObject>();
  const Value attributes = MakeDict(arguments);
  for (const auto& [key, value] : attributes.dict().items) {
    space->Set(RequireText(key, "the name of an attribute"), value);
  }
  return Value::Of(space);
}

}  // namespace lockstep::data::chat
