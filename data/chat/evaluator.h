// Runs a parsed template.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/chat/builtins.h"
#include "data/chat/objects.h"
#include "data/chat/syntax.h"
#include "data/chat/value.h"

namespace lockstep::data::chat {

// The variables of a block, and those around it.
class Scope {
 public:
  explicit Scope(std::shared_ptr<Scope> outer) : outer_(std::move(outer)) {}
  // nullptr if there is none.
  const Value* Find(const std::string& name) const;
  void Set(const std::string& name, Value value) { variables_[name] = std::move(value); }

 private:
  std::map<std::string, Value> variables_;
  std::shared_ptr<Scope> outer_;
};

// Bytes [begin, end) of the text.
struct ByteSpan {
  int64_t begin = 0, end = 0;
};

// For one rendering. Throws TemplateFailure, after which only position() may be called.
class Evaluator {
 public:
  // `now`: seconds since 1970, for strftime_now.
  Evaluator(std::vector<std::pair<std::string, Value>> variables, int64_t now, int max_depth);

  void Run(const Block& block) { Execute(block); }

  std::string TakeText() { return std::move(text_); }
  std::vector<ByteSpan> TakeGeneration() { return std::move(generation_); }
  // Of what is evaluated: after a failure, of what failed.
  const Position& position() const { return position_; }
  int64_t now() const { return now_; }

  // Objects live as long as the evaluator: their memory is not returned to the budget.
  template <class T, class... Args>
  T* Own(Args&&... args) {
    Budget::Current()->Take(sizeof(T) + 256);
    auto object = std::make_unique<T>(std::forward<Args>(args)...);
    T* const pointer = object.get();
    objects_.push_back(std::move(object));
    return pointer;
  }

 private:
  enum class Flow { kNext, kBreak, kContinue };

  void Enter(const Position& position);
  Flow Execute(const Block& block);
  Flow Execute(const Statement& statement);
  Flow ExecuteFor(const Statement& statement);
  Flow ExecuteInScope(const Block& block);  // in a scope of its own
  // What the block writes.
  Value Capture(const Block& block, std::shared_ptr<Scope> scope);
  void Write(std::string_view text);
  void Assign(const Expression& target, const Value& value);
  Value CallMacro(const Macro& macro, const Arguments& arguments);

  Value Evaluate(const Expression& expression);
  Value EvaluateKind(const Expression& expression);
  Value EvaluateName(const Expression& expression) const;
  Value EvaluateCall(const Expression& expression);
  List EvaluateAll(const std::vector<ExpressionPtr>& expressions);
  Arguments EvaluateArguments(const Expression& call);

  // Runs the function with `scope` as the innermost.
  template <class Function>
  auto InScope(std::shared_ptr<Scope> scope, Function function) {
    std::shared_ptr<Scope> outer = std::exchange(scope_, std::move(scope));
    const auto result = function();
    scope_ = std::move(outer);
    return result;
  }

  std::vector<std::unique_ptr<Object>> objects_;
  std::shared_ptr<Scope> scope_;
  std::string text_;
  std::string* out_ = &text_;
  size_t captured_bytes_ = 0;  // in the buffers around *out_
  std::vector<ByteSpan> generation_;
  const Value* block_value_ = nullptr;  // of the set block whose filters are evaluated
  Position position_;
  int64_t now_;
  int depth_ = 0;
  int max_depth_;
};

}  // namespace lockstep::data::chat
