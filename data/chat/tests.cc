#include <map>

#include "data/chat/builtins.h"
#include "data/chat/operators.h"
#include "data/chat/text.h"

namespace lockstep::data::chat {
namespace {

using Function = bool (*)(const Value& value, const Arguments& arguments);

Value Operand(const Arguments& arguments) { return *arguments.Bind("this test", {"other"}, 1)[0]; }

bool DividesWithRest(const Value& value, int64_t divisor, int64_t rest) {
  return Equal(Arithmetic("%", value, Value::Int(divisor)), Value::Int(rest));
}

template <bool (*predicate)(const Value&)>
bool Plain(const Value& value, const Arguments& arguments) {
  arguments.Bind("this test", {});
  return predicate(value);
}

template <Kind kind>
bool IsKind(const Value& value) {
  return value.Is(kind);
}
bool IsDefined(const Value& value) { return !value.Is(Kind::kUndefined); }
bool IsTrue(const Value& value) { return value.Is(Kind::kBool) && value.boolean(); }
bool IsFalse(const Value& value) { return value.Is(Kind::kBool) && !value.boolean(); }
bool IsIterable(const Value& value) {
  return value.IsSequence() || value.Is(Kind::kString) || value.Is(Kind::kDict) ||
         value.Is(Kind::kUndefined);
}
bool IsIndexed(const Value& value) {
  return IsIterable(value) && !value.Is(Kind::kView) && !value.Is(Kind::kGenerator);
}
bool IsCallable(const Value& value) {
  return value.Is(Kind::kMethod) || value.Is(Kind::kUndefined) ||
         (value.Is(Kind::kObject) && value.object()->callable());
}
bool IsNumeric(const Value& value) { return value.IsNumber(); }
bool IsLowerText(const Value& value) { return AllCased(Str(value), IsLower, IsUpper); }
bool IsUpperText(const Value& value) { return AllCased(Str(value), IsUpper, IsLower); }

// The same object: exact for what templates compare in this way, None, true and false.
bool Same(const Value& a, const Value& b) {
  if (a.kind() != b.kind()) return false;
  if (a.Is(Kind::kNone) || a.Is(Kind::kBool) || a.Is(Kind::kObject)) return Equal(a, b);
  Fail("the test 'sameas' is supported for none, true, false and namespaces only");
}

const std::map<std::string, Function, std::less<>>& Tests() {
  static const std::map<std::string, Function, std::less<>> tests = [] {
    std::map<std::string, Function, std::less<>> table = {
        {"boolean", Plain<IsKind<Kind::kBool>>},
        {"callable", Plain<IsCallable>},
        {"defined", Plain<IsDefined>},
        {"divisibleby",
         [](const Value& value, const Arguments& args) {
           return Equal(Arithmetic("%", value, Operand(args)), Value::Int(0));
         }},
        {"even",
         [](const Value& value, const Arguments& args) {
           args.Bind("even", {});
           return DividesWithRest(value, 2, 0);
         }},
        {"false", Plain<IsFalse>},
        {"float", Plain<IsKind<Kind::kFloat>>},
        {"integer", Plain<IsKind<Kind::kInt>>},
        {"in",
         [](const Value& value, const Arguments& args) { return Contains(Operand(args), value); }},
        {"iterable", Plain<IsIterable>},
        {"lower", Plain<IsLowerText>},
        {"mapping", Plain<IsKind<Kind::kDict>>},
        {"none", Plain<IsKind<Kind::kNone>>},
        {"number", Plain<IsNumeric>},
        {"odd",
         [](const Value& value, const Arguments& args) {
           args.Bind("odd", {});
           return DividesWithRest(value, 2, 1);
         }},
        {"sameas",
         [](const Value& value, const Arguments& args) { return Same(value, Operand(args)); }},
        {"sequence", Plain<IsIndexed>},
        {"string", Plain<IsKind<Kind::kString>>},
        {"true", Plain<IsTrue>},
        {"undefined", Plain<IsKind<Kind::kUndefined>>},
        {"upper", Plain<IsUpperText>},
        {"eq",
         [](const Value& value, const Arguments& args) { return Equal(value, Operand(args)); }},
        {"ne",
         [](const Value& value, const Arguments& args) { return !Equal(value, Operand(args)); }},
        {"lt",
         [](const Value& value, const Arguments& args) { return Less(value, Operand(args)); }},
        {"gt",
         [](const Value& value, const Arguments& args) { return Less(Operand(args), value, ">"); }},
        {"le", [](const Value& value,
                  const Arguments& args) { return LessOrEqual(value, Operand(args), "<="); }},
        {"ge", [](const Value& value,
                  const Arguments& args) { return LessOrEqual(Operand(args), value, ">="); }},
    };
    const std::pair<const char*, const char*> aliases[] = {
        {"==", "eq"}, {"equalto", "eq"},  {"!=", "ne"}, {">", "gt"}, {"greaterthan", "gt"},
        {"<", "lt"},  {"lessthan", "lt"}, {"<=", "le"}, {">=", "ge"}};
    for (const auto& [alias, name] : aliases) table.emplace(alias, table.at(name));
    return table;
  }();
  return tests;
}

}  // namespace

void RequireTest(std::string_view name) {
  if (Tests().contains(name)) return;
  std::string known;
  for (const auto& [test, unused] : Tests()) known += (known.empty() ? "" : ", ") + test;
  Fail("the test '", name, "' is not supported; there are ", known);
}

bool ApplyTest(const std::string& name, const Value& value, const Arguments& arguments) {
  return Tests().find(name)->second(value, arguments);
}

}  // namespace lockstep::data::chat
