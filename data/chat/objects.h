// Namespaces, macros and the state of loops.
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
  std::optional<Value> Attribute(const std::string& name) override {
    const auto it = attributes_.find(name);
    return it == attributes_.end() ? std::nullopt : std::optional(it->second);
  }
  void Set(const std::string& name, Value value) {
    if (name.starts_with('_')) {
      Fail("an attribute of a namespace must not begin with an underscore: '", name, "'");
    }
    attributes_[name] = std::move(value);
  }

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

  // Goes to the next element; false after the last.
  bool Next() {
    if (IsLast()) return false;
    previous_ = std::exchange(current_, ahead_.front());
    ahead_.pop_front();
    ++index_;
    return true;
  }
  const Value& current() const { return current_; }
  // After the loop: releases the elements.
  void Finish() {
    items_ = List();
    ahead_.clear();
    accepts_ = nullptr;
    last_changed_.reset();
    tried_ = 0;
  }

  // The methods.
  Value Cycle(const List& values) const {
    if (values.empty()) Fail("loop.cycle needs the values to cycle through");
    return values[static_cast<size_t>(index_) % values.size()];
  }
  bool Changed(const List& values) {
    const bool changed = !last_changed_ || !Holds("==", Value::Of(Kind::kTuple, *last_changed_),
                                                  Value::Of(Kind::kTuple, values));
    last_changed_ = values;
    return changed;
  }

 private:
  // Takes one more accepted element into ahead_.
  bool Pull() {
    while (tried_ < items_.size()) {
      const Value& item = items_[tried_++];
      if (accepts_ && !accepts_(item)) continue;
      ahead_.push_back(item);
      return true;
    }
    return false;
  }
  bool IsLast() { return ahead_.empty() && !Pull(); }
  int64_t Length() {
    while (Pull()) continue;
    return index_ + 1 + static_cast<int64_t>(ahead_.size());
  }

  List items_;
  size_t tried_ = 0;  // of items_
  Condition accepts_;
  std::deque<Value> ahead_;  // accepted, not yet current
  int64_t index_ = -1;
  Value previous_, current_;
  std::optional<List> last_changed_;
};

}  // namespace lockstep::data::chat
