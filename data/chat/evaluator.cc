#include "data/chat/evaluator.h"

#include <utility>

#include "data/chat/objects.h"

namespace lockstep::data::chat {

const Value* Scope::Find(const std::string& name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->outer_.get()) {
    const auto it = scope->variables_.find(name);
    if (it != scope->variables_.end()) return &it->second;
  }
  return nullptr;
}

Evaluator::Evaluator(std::vector<std::pair<std::string, Value>> variables, int64_t now,
                     int max_depth)
    : scope_(std::make_shared<Scope>(nullptr)), max_depth_(max_depth) {
  DefineFunctions(now);
  for (auto& [name, value] : variables) scope_->Set(name, std::move(value));
}

void Evaluator::Run(const Block& block) { Execute(block); }

void Evaluator::Enter(const Position& position) {
  position_ = position;
  Work(1);
  if (++depth_ > max_depth_) {
    Fail("the template calls or nests deeper than ", max_depth_,
         " levels; does a macro call itself without an end?");
  }
}

Evaluator::Flow Evaluator::Execute(const Block& block) {
  for (const Statement& statement : block) {
    Enter(statement.position);
    const Flow flow = Execute(statement);
    --depth_;
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Evaluator::Flow Evaluator::Execute(const Statement& statement) {
  switch (statement.kind) {
    case StatementKind::kText:
      Write(statement.text);
      break;
    case StatementKind::kOutput:
      Write(Str(Evaluate(*statement.expression)));
      break;
    case StatementKind::kIf:
      return ExecuteIf(statement);
    case StatementKind::kFor:
      return ExecuteFor(statement);
    case StatementKind::kSet:
      Assign(statement.target, Evaluate(*statement.expression));
      break;
    case StatementKind::kSetBlock:
      ExecuteSetBlock(statement);
      break;
    case StatementKind::kMacro:
      scope_->Set(statement.text, Value::Of(Own<MacroObject>(&statement, scope_)));
      break;
    case StatementKind::kGeneration: {
      // Only at top level, so *out_ is the text.
      const auto begin = static_cast<int64_t>(text_.size());
      InScope(std::make_shared<Scope>(scope_), [&] { return Execute(statement.block); });
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

Evaluator::Flow Evaluator::ExecuteIf(const Statement& statement) {
  for (const Statement::Branch& branch : statement.branches) {
    if (Truthy(Evaluate(*branch.condition))) return Execute(branch.block);
  }
  return Execute(statement.else_block);
}

Evaluator::Flow Evaluator::ExecuteFor(const Statement& statement) {
  List items = Iterate(Evaluate(*statement.expression));
  LoopObject::Condition accepts;
  if (statement.condition != nullptr) {
    accepts = [this, &statement, outer = scope_](const Value& item) {
      return InScope(std::make_shared<Scope>(outer), [&] {
        Assign(statement.target, item);
        return Truthy(Evaluate(*statement.condition));
      });
    };
  }
  auto* loop = Own<LoopObject>(std::move(items), std::move(accepts));
  bool empty = true;
  while (loop->Next()) {
    empty = false;
    const Flow flow = InScope(std::make_shared<Scope>(scope_), [&] {
      scope_->Set("loop", Value::Of(loop));
      Assign(statement.target, loop->current());
      return Execute(statement.block);
    });
    if (flow == Flow::kBreak) break;
  }
  loop->Finish();
  if (!empty) return Flow::kNext;
  return InScope(std::make_shared<Scope>(scope_), [&] { return Execute(statement.else_block); });
}

void Evaluator::ExecuteSetBlock(const Statement& set) {
  Value value = Value::String(Capture(set.block, std::make_shared<Scope>(scope_)));
  if (set.expression != nullptr) {
    block_value_ = &value;
    value = Evaluate(*set.expression);
  }
  Assign(set.target, value);
}

std::string Evaluator::Capture(const Block& block, std::shared_ptr<Scope> scope) {
  std::string captured;
  captured_bytes_ += out_->size();
  std::string* const outer = std::exchange(out_, &captured);
  InScope(std::move(scope), [&] { return Execute(block); });
  out_ = outer;
  captured_bytes_ -= out_->size();
  return captured;
}

void Evaluator::Write(std::string_view text) {
  RequireTextFits(captured_bytes_ + out_->size() + text.size());
  TextWork(text.size());
  out_->append(text);
}

void Evaluator::Assign(const Target& target, const Value& value) {
  if (target.is_tuple) {
    const List parts = Iterate(value);
    if (parts.size() != target.parts.size()) {
      Fail("cannot unpack ", parts.size(), " values to ", target.parts.size(), " names");
    }
    for (size_t i = 0; i < parts.size(); ++i) Assign(target.parts[i], parts[i]);
  } else if (target.attribute.empty()) {
    scope_->Set(target.name, value);
  } else {
    const Value* found = scope_->Find(target.name);
    if (found == nullptr) Fail("'", target.name, "' is undefined");
    auto* space =
        found->Is(Kind::kObject) ? dynamic_cast<NamespaceObject*>(found->object()) : nullptr;
    if (space == nullptr) {
      Fail("'", target.name, "' is no namespace: its attributes cannot be assigned to");
    }
    space->Set(target.attribute, value);
  }
}

Value Evaluator::CallMacro(const MacroObject& macro, const Arguments& arguments) {
  const std::string& name = macro.statement->text;
  std::vector<std::string> names;
  for (const auto& parameter : macro.statement->parameters) names.push_back(parameter.name);
  const auto bound = arguments.Bind(StrCat("the macro '", name, "'"), names);
  auto scope = std::make_shared<Scope>(macro.scope);
  InScope(scope, [&] {
    for (size_t i = 0; i < bound.size(); ++i) {
      const ExpressionPtr& absent = macro.statement->parameters[i].absent;
      scope_->Set(names[i], bound[i]            ? *bound[i]
                            : absent != nullptr ? Evaluate(*absent)
                                                : Value::Undefined(StrCat("parameter '", names[i],
                                                                          "' was not provided")));
    }
    return true;
  });
  return Value::String(Capture(macro.statement->block, std::move(scope)));
}

}  // namespace lockstep::data::chat
