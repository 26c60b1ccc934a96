// Tests: value is name.
#include "data/chat/builtins.h"
#include "data/chat/text.h"

namespace lockstep::data::chat {
namespace {

constexpr BuiltinKind kTest = BuiltinKind::kTest;

bool HasRest(const Value& value, const Value& divisor, int64_t rest) {
  return Equal(Arithmetic("%", value, divisor), Value::Int(rest));
}

bool IsIterable(const Value& value) {
  return value.IsSequence() || value.Is(Kind::kString) || value.Is(Kind::kDict) ||
         value.Is(Kind::kUndefined);
}

bool IsCallable(const Value& value) {
  return value.Is(Kind::kFunction) || value.Is(Kind::kUndefined) ||
         (value.Is(Kind::kObject) && value.object()->callable());
}

// The same object: exact for what templates compare in this way, None, true and false.
bool IsSame(const Value& a, const Value& b) {
  if (a.kind() != b.kind()) return false;
  if (a.Is(Kind::kNone) || a.Is(Kind::kBool) || a.Is(Kind::kObject)) return Equal(a, b);
  Fail("the test 'sameas' is supported for none, true, false and namespaces only");
}

}  // namespace

std::vector<Builtin> TestTable() {
  using C = const Call&;
  return {
      {kTest, "boolean", "", [](C c) { return c.self.Is(Kind::kBool); }},
      {kTest, "callable", "", [](C c) { return IsCallable(c.self); }},
      {kTest, "defined", "", [](C c) { return !c.self.Is(Kind::kUndefined); }},
      {kTest, "divisibleby", "num", [](C c) { return HasRest(c.self, c.bound[0], 0); }},
      {kTest, "even", "", [](C c) { return HasRest(c.self, Value::Int(2), 0); }},
      {kTest, "false", "", [](C c) { return c.self.Is(Kind::kBool) && !Truthy(c.self); }},
      {kTest, "float", "", [](C c) { return c.self.Is(Kind::kFloat); }},
      {kTest, "in", "seq", [](C c) { return Holds("in", c.self, c.bound[0]); }},
      {kTest, "integer", "", [](C c) { return c.self.Is(Kind::kInt); }},
      {kTest, "iterable", "", [](C c) { return IsIterable(c.self); }},
      {kTest, "lower", "", [](C c) { return IsCased(Str(c.self), false); }},
      {kTest, "mapping", "", [](C c) { return c.self.Is(Kind::kDict); }},
      {kTest, "none", "", [](C c) { return c.self.Is(Kind::kNone); }},
      {kTest, "number", "", [](C c) { return c.self.IsNumber(); }},
      {kTest, "odd", "", [](C c) { return HasRest(c.self, Value::Int(2), 1); }},
      {kTest, "sameas", "other", [](C c) { return IsSame(c.self, c.bound[0]); }},
      {kTest, "sequence", "",
       [](C c) {
         return IsIterable(c.self) && !c.self.Is(Kind::kView) && !c.self.Is(Kind::kGenerator);
       }},
      {kTest, "string", "", [](C c) { return c.self.Is(Kind::kString); }},
      {kTest, "true", "", [](C c) { return c.self.Is(Kind::kBool) && Truthy(c.self); }},
      {kTest, "undefined", "", [](C c) { return c.self.Is(Kind::kUndefined); }},
      {kTest, "upper", "", [](C c) { return IsCased(Str(c.self), true); }},
      {kTest, "eq == equalto", "b", [](C c) { return Holds("==", c.self, c.bound[0]); }},
      {kTest, "ne !=", "b", [](C c) { return Holds("!=", c.self, c.bound[0]); }},
      {kTest, "lt < lessthan", "b", [](C c) { return Holds("<", c.self, c.bound[0]); }},
      {kTest, "le <=", "b", [](C c) { return Holds("<=", c.self, c.bound[0]); }},
      {kTest, "gt > greaterthan", "b", [](C c) { return Holds(">", c.self, c.bound[0]); }},
      {kTest, "ge >=", "b", [](C c) { return Holds(">=", c.self, c.bound[0]); }},
  };
}

}  // namespace lockstep::data::chat
