#include "data/chat/evaluator.h"

#include <map>

#include "data/chat/objects.h"

namespace lockstep::data::chat {

// The variables of a block, and those around it.
class Scope {
 public:
  explicit Scope(std::shared_ptr<Scope> outer) : outer_(std::move(outer)) {}
  // nullptr if there is none.
  const Value* Find(const std::string& name) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->outer_.get()) {
      const auto it = scope->variables_.find(name);
      if (it != scope->variables_.end()) return &it->second;
    }
    return nullptr;
  }
  void Set(const std::string& name, Value value) { variables_[name] = std::move(value); }

 private:
  std::map<std::string, Value> variables_;
  std::shared_ptr<Scope> outer_;
};

namespace {

class Evaluator {
 public:
  Evaluator(Variables variables, int64_t now) : rendering_{now, {}} {
    for (auto& [name, value] : variables) scope_->Set(name, std::move(value));
  }

  RenderedText Run(const Block& block) {
    try {
      Execute(block);
    } catch (const TemplateFailure& failure) {
      FailAt(position_, failure.what());
    }
    return {std::move(text_), std::move(generation_)};
  }

 private:
  enum class Flow { kNext, kBreak, kContinue };

  // Runs the function with `scope` as the innermost.
  template <class Function>
  auto InScope(std::shared_ptr<Scope> scope, Function function) {
    std::shared_ptr<Scope> outer = std::exchange(scope_, std::move(scope));
    const auto result = function();
    scope_ = std::move(outer);
    return result;
  }

  void Enter(const Position& position) {
    position_ = position;
    Work(1);
    if (++depth_ > max_depth_) {
      Fail("the template calls or nests deeper than ", max_depth_,
           " levels; does a macro call itself without an end?");
    }
  }

  Flow Execute(const Block& block) {
    for (const Statement& statement : block) {
      Enter(statement.position);
      const Flow flow = Execute(statement);
      --depth_;
      if (flow != Flow::kNext) return flow;
    }
    return Flow::kNext;
  }

  Flow ExecuteInScope(const Block& block) {
    return InScope(std::make_shared<Scope>(scope_), [&] { return Execute(block); });
  }

  Flow Execute(const Statement& statement) {
    switch (statement.kind) {
      case StatementKind::kText:
        Write(statement.text);
        break;
      case StatementKind::kOutput:
        Write(Str(Evaluate(*statement.expressions[0])));
        break;
      case StatementKind::kIf: {
        size_t branch = 0;
        while (branch < statement.expressions.size() &&
               !Truthy(Evaluate(*statement.expressions[branch]))) {
          ++branch;
        }
        return branch < statement.blocks.size() ? Execute(statement.blocks[branch]) : Flow::kNext;
      }
      case StatementKind::kFor:
        return ExecuteFor(statement);
      case StatementKind::kSet:
        Assign(*statement.target, Evaluate(*statement.expressions[0]));
        break;
      case StatementKind::kSetBlock: {
        Value value = Capture(statement.blocks[0], std::make_shared<Scope>(scope_));
        block_value_ = &value;
        if (!statement.expressions.empty()) value = Evaluate(*statement.expressions[0]);
        Assign(*statement.target, value);
        break;
      }
      case StatementKind::kMacro:
        scope_->Set(statement.text, Value::Of(rendering_.Own<Macro>(&statement, scope_)));
        break;
      case StatementKind::kGeneration: {
        // Only at top level, so *out_ is the text.
        const auto begin = static_cast<int64_t>(text_.size());
        ExecuteInScope(statement.blocks[0]);
        generation_.push_back({begin, static_cast<int64_t>(text_.size())});
        break;
      }
      case StatementKind::kBreak:
        return Flow::kBreak;
      case StatementKind::kContinue:
        return Flow::kContinue;
    }
    return Flow::kNext;
  }

  Flow ExecuteFor(const Statement& statement) {
    List items = Iterate(Evaluate(*statement.expressions[0]));
    Loop::Condition accepts;
    if (statement.expressions.size() > 1) {
      accepts = [this, &statement, outer = scope_](const Value& item) {
        return InScope(std::make_shared<Scope>(outer), [&] {
          Assign(*statement.target, item);
          return Truthy(Evaluate(*statement.expressions[1]));
        });
      };
    }
    auto* loop = rendering_.Own<Loop>(std::move(items), std::move(accepts));
    bool empty = true;
    while (loop->Next()) {
      empty = false;
      const Flow flow = InScope(std::make_shared<Scope>(scope_), [&] {
        scope_->Set("loop", Value::Of(loop));
        Assign(*statement.target, loop->current());
        return Execute(statement.blocks[0]);
      });
      if (flow == Flow::kBreak) break;
    }
    loop->Finish();
    return empty ? ExecuteInScope(statement.blocks[1]) : Flow::kNext;
  }

  Value Capture(const Block& block, std::shared_ptr<Scope> scope) {
    std::string captured;
    captured_bytes_ += out_->size();
    std::string* const outer = std::exchange(out_, &captured);
    InScope(std::move(scope), [&] { return Execute(block); });
    out_ = outer;
    captured_bytes_ -= out_->size();
    return Value::String(std::move(captured));
  }

  void Write(std::string_view text) {
    RequireTextFits(captured_bytes_ + out_->size() + text.size());
    TextWork(text.size());
    out_->append(text);
  }

  void Assign(const Expression& target, const Value& value) {
    if (target.kind == ExpressionKind::kName) return scope_->Set(target.name, value);
    if (target.kind == ExpressionKind::kTuple) {
      const List parts = Iterate(value);
      if (parts.size() != target.operands.size()) {
        Fail("cannot unpack ", parts.size(), " values to ", target.operands.size(), " names");
      }
      for (size_t i = 0; i < parts.size(); ++i) Assign(*target.operands[i], parts[i]);
      return;
    }
    const std::string& name = target.operands[0]->name;
    const Value* found = scope_->Find(name);
    if (found == nullptr) Fail("'", name, "' is undefined");
    auto* space = found->Is(Kind::kObject) ? dynamic_cast<Namespace*>(found->object()) : nullptr;
    if (space == nullptr)
      Fail("'", name, "' is not a namespace: its attributes cannot be assigned to");
    space->Set(target.name, value);
  }

  Value Evaluate(const Expression& expression) {
    const Position outer = position_;
    Enter(expression.position);
    Value value = EvaluateKind(expression);
    --depth_;
    position_ = outer;
    return value;
  }

  Value EvaluateKind(const Expression& expression) {
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
      case ExpressionKind::kDict: {
        const List parts = EvaluateAll(expression.operands);
        std::vector<std::pair<Value, Value>> items;
        for (size_t i = 0; i < parts.size(); i += 2) items.emplace_back(parts[i], parts[i + 1]);
        return Value::Mapping(items);
      }
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
      case ExpressionKind::kTest: {
        const Value subject = expression.operands[0] == nullptr ? *block_value_ : operand(0);
        return Apply(*expression.builtin, subject, EvaluateArguments(expression), &rendering_);
      }
      case ExpressionKind::kNegative:
        return Negate(operand(0));
      case ExpressionKind::kNot:
        return Value::Bool(!Truthy(operand(0)));
      case ExpressionKind::kAnd:
      case ExpressionKind::kOr: {
        Value left = operand(0);
        const bool decided = Truthy(left) == (expression.kind == ExpressionKind::kOr);
        return decided ? left : operand(1);
      }
      case ExpressionKind::kCompare: {
        Value left = operand(0);
        for (size_t i = 0; i < expression.names.size(); ++i) {
          Value right = operand(i + 1);
          if (!Holds(expression.names[i], left, right)) return Value::Bool(false);
          left = std::move(right);
        }
        return Value::Bool(true);
      }
      case ExpressionKind::kArithmetic: {
        const Value left = operand(0);
        return Arithmetic(expression.name, left, operand(1));
      }
      case ExpressionKind::kConcatenate: {
        std::string text;
        for (const ExpressionPtr& part : expression.operands) {
          text += Str(Evaluate(*part));
          RequireTextFits(text.size());
        }
        return Value::String(std::move(text));
      }
      case ExpressionKind::kConditional:
        if (Truthy(operand(1))) return operand(0);
        if (expression.operands.size() == 3) return operand(2);
        return Value::Undefined("the inline if-expression is false and has no else");
    }
    LS_INVARIANT(false, "an expression of unknown kind");
  }

  Value EvaluateName(const Expression& expression) const {
    const std::string& name = expression.name;
    if (const Value* value = scope_->Find(name)) return *value;
    if (const Builtin* function = FindBuiltin(BuiltinKind::kFunction, name)) {
      return Value::Of(function);
    }
    for (const char* other : {"caller", "varargs", "kwargs", "cycler", "joiner", "lipsum"}) {
      if (name == other) Fail("'", name, "' is not supported in chat templates");
    }
    return Value::Undefined("'" + name + "' is undefined");
  }

  List EvaluateAll(const std::vector<ExpressionPtr>& expressions) {
    List values;
    for (const ExpressionPtr& expression : expressions) values.push_back(Evaluate(*expression));
    return values;
  }

  Arguments EvaluateArguments(const Expression& call) {
    Arguments arguments;
    for (size_t i = 0; i < call.names.size(); ++i) {
      Value value = Evaluate(*call.operands[i + 1]);
      if (call.names[i].empty()) {
        arguments.positional.push_back(std::move(value));
      } else {
        arguments.named.emplace_back(call.names[i], std::move(value));
      }
    }
    return arguments;
  }

  Value EvaluateCall(const Expression& expression) {
    const Value callee = Evaluate(*expression.operands[0]);
    const Arguments arguments = EvaluateArguments(expression);
    RequireDefined(callee);
    if (callee.Is(Kind::kFunction)) {
      return Apply(*callee.function().builtin, callee.function().self, arguments, &rendering_);
    }
    const auto* macro = callee.Is(Kind::kObject) ? dynamic_cast<Macro*>(callee.object()) : nullptr;
    if (macro == nullptr) Fail("'", TypeName(callee), "' object is not callable");
    return CallMacro(*macro, arguments);
  }

  Value CallMacro(const Macro& macro, const Arguments& arguments) {
    const Statement& statement = *macro.statement;
    auto bound = Bind(StrCat("the macro '", statement.text, "'"), arguments, statement.names);
    auto scope = std::make_shared<Scope>(macro.scope);
    InScope(scope, [&] {
      for (size_t i = 0; i < bound.size(); ++i) {
        const std::string& name = statement.names[i];
        if (!bound[i] && statement.expressions[i] != nullptr) {
          bound[i] = Evaluate(*statement.expressions[i]);
        }
        scope_->Set(name, bound[i] ? *bound[i]
                                   : Value::Undefined("parameter '" + name + "' was not provided"));
      }
      return true;
    });
    return Capture(statement.blocks[0], std::move(scope));
  }

  Rendering rendering_;
  std::shared_ptr<Scope> scope_ = std::make_shared<Scope>(nullptr);
  std::string text_;
  std::string* out_ = &text_;
  size_t captured_bytes_ = 0;  // in the buffers around *out_
  std::vector<ByteSpan> generation_;
  const Value* block_value_ = nullptr;  // of the set block whose filters are evaluated
  Position position_;
  int depth_ = 0;
  const int max_depth_ = Budget::Current()->limits().depth;
};

}  // namespace

RenderedText Evaluate(const Syntax& syntax, Variables variables, int64_t now) {
  return Evaluator(std::move(variables), now).Run(syntax.block);
}

}  // namespace lockstep::data::chat
