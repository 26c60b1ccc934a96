// The objects of a rendering: namespaces, macros and the state of loops.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "data/chat/builtins.h"
#include "data/chat/value.h"

namespace lockstep::data::chat {

struct Statement;
class Scope;

class Namespace : public Object {
 public:
  const char* type_name() const override { return "namespace"; }
  std::optional<Value> Attribute(const std::string& name) override;
  void Set(const std::string& name, Value value);

 private:
  std::map<std::string, Value> attributes_;
};

class Macro : public Object {
 public:
  Macro(const Statement* statement, std::shared_ptr<Scope> scope)
      : statement(statement), scope(std::move(scope)) {}
  const char* type_name() const override { return "macro"; }
  bool callable() const override { return true; }

  const Statement* const statement;
  const std::shared_ptr<Scope> scope;  // in which it was defined
};

// `loop`. With a condition, elements are tried as late as possible, as in Jinja: the condition may
// depend on what the body has set.
class Loop : public Object {
 public:
  using Condition = std::function<bool(const Value&)>;

  // An empty condition accepts everything.
  Loop(List items, Condition accepts) : items_(std::move(items)), accepts_(std::move(accepts)) {}
  const char* type_name() const override { return "loop"; }
  std::optional<Value> Attribute(const std::string& name) override;

  // Goes to the next element; false behind the last.
  bool Next();
  const Value& current() const { return current_; }
  // Behind the loop: lets go of the elements.
  void Finish();

  // The methods.
  Value Cycle(const List& values) const;
  bool Changed(const List& values);

 private:
  bool Pull();  // one more accepted element into ahead_
  bool IsLast() { return ahead_.empty() && !Pull(); }
  int64_t Length();

  List items_;
  size_t tried_ = 0;  // of items_
  Condition accepts_;
  std::deque<Value> ahead_;  // accepted, not yet current
  int64_t index_ = -1;
  Value previous_, current_;
  std::optional<List> last_changed_;
};

}  // namespace lockstep::data::chat
