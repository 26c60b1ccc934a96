// The objects of a rendering: namespaces, functions and the state of loops.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "data/chat/arguments.h"
#include "data/chat/value.h"

namespace lockstep::data::chat {

class NamespaceObject : public Object {
 public:
  const char* type_name() const override { return "namespace"; }
  std::optional<Value> Attribute(const std::string& name) override;
  void Set(const std::string& name, Value value);

 private:
  std::map<std::string, Value> attributes_;
};

class FunctionObject : public Object {
 public:
  using Body = std::function<Value(const Arguments&)>;

  explicit FunctionObject(Body body) : body_(std::move(body)) {}
  const char* type_name() const override { return "function"; }
  bool callable() const override { return true; }
  Value Call(const Arguments& arguments) const { return body_(arguments); }

 private:
  Body body_;
};

struct Statement;
class Scope;

class MacroObject : public Object {
 public:
  MacroObject(const Statement* macro, std::shared_ptr<Scope> around)
      : statement(macro), scope(std::move(around)) {}
  const char* type_name() const override { return "macro"; }
  bool callable() const override { return true; }

  const Statement* const statement;
  const std::shared_ptr<Scope> scope;  // in which it was defined
};

// `loop`. With a condition, elements are tried as late as possible, as in Jinja: the condition may
// depend on what the body has set.
class LoopObject : public Object {
 public:
  using Condition = std::function<bool(const Value&)>;

  // An empty condition accepts everything.
  LoopObject(List items, Condition accepts);
  const char* type_name() const override { return "loop"; }
  std::optional<Value> Attribute(const std::string& name) override;

  // Goes to the next element; false behind the last.
  bool Next();
  const Value& current() const { return current_; }
  // Behind the loop: lets go of the elements.
  void Finish();

 private:
  bool Pull();  // one more accepted element into ahead_
  bool IsLast();
  int64_t Length();
  Value Cycle(const Arguments& arguments) const;
  bool Changed(const Arguments& arguments);

  List items_;
  size_t tried_ = 0;  // of items_
  Condition accepts_;
  std::deque<Value> ahead_;  // accepted, not yet current
  int64_t index_ = -1;
  Value previous_, current_;
  std::optional<List> last_changed_;
  FunctionObject cycle_, changed_;
};

// The functions that templates can call by name.
Value Range(const Arguments& arguments);
Value MakeDict(const Arguments& arguments);
// `now`: seconds since 1970.
Value StrftimeNow(const Arguments& arguments, int64_t now);
[[noreturn]] void RaiseException(const Arguments& arguments);

}  // namespace lockstep::data::chat
