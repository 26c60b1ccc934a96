// The global functions, and what `loop` has.
#include <ctime>

#include "data/chat/objects.h"

namespace lockstep::data::chat {
namespace {

using enum BuiltinKind;
using C = const Call&;

Value Range(C c) {
  constexpr int64_t kMostElements = 100'000;  // as in Jinja's sandbox
  const bool one = !c.Has(1);
  const int64_t first = c.Integer(0), step = c.Integer(2);
  const int64_t start = one ? 0 : first, stop = one ? first : c.Integer(1);
  if (step == 0) Fail("the step of range must not be zero");
  List numbers;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (numbers.size() == kMostElements) Fail("range has more than ", kMostElements, " elements");
    numbers.push_back(Value::Int(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return Value::Of(Kind::kRange, std::move(numbers));
}

Value MakeDict(C c) {
  if (c.arguments.positional.size() > 1) {
    Fail(c.builtin.name, " takes at most one argument without a name");
  }
  std::vector<std::pair<Value, Value>> items;
  for (const Value& given : c.arguments.positional) {
    RequireDefined(given);
    for (const Value& pair : given.Is(Kind::kDict) ? ItemPairs(given) : Iterate(given)) {
      const List parts = Iterate(pair);
      if (parts.size() != 2) Fail(c.builtin.name, " needs pairs of a key and a value");
      items.emplace_back(parts[0], parts[1]);
    }
  }
  for (const auto& [name, value] : c.arguments.named) {
    items.emplace_back(Value::String(name), value);
  }
  return Value::Mapping(items);
}

Value MakeNamespace(C c) {
  auto* space = c.rendering->Own<Namespace>();
  const Value attributes = MakeDict(c);
  for (const auto& [key, value] : attributes.dict().items) {
    space->Set(RequireText(key, "the name of an attribute"), value);
  }
  return Value::Of(space);
}

std::string StrftimeNow(C c) {
  const std::string& format = c.Text(0);
  const std::time_t time = c.rendering->now;
  std::tm parts{};
  if (localtime_r(&time, &parts) == nullptr) Fail("strftime_now: there is no such time");
  RequireTextFits(1024 + 16 * format.size());
  std::string text(1024 + 16 * format.size(), '\0');
  // The space keeps the result from being empty, which would look like a failure.
  const size_t size = std::strftime(text.data(), text.size(), (format + " ").c_str(), &parts);
  if (size == 0) Fail("strftime_now: the text is too long");
  text.resize(size - 1);
  return text;
}

Value RaiseException(C c) { Fail("the template raises an exception: ", Str(c.bound[0])); }

Loop& LoopOf(C c) { return static_cast<Loop&>(*c.self.object()); }

}  // namespace

std::vector<Builtin> FunctionTable() {
  return {
      {kFunction, "dict", "*", MakeDict},
      {kFunction, "namespace", "*", MakeNamespace},
      {kFunction, "raise_exception", "message", RaiseException},
      {kFunction, "range", "start stop=none step=1", Range},
      {kFunction, "strftime_now", "format", StrftimeNow},
      {kLoopMethod, "changed", "*", [](C c) { return LoopOf(c).Changed(c.arguments.positional); }},
      {kLoopMethod, "cycle", "*", [](C c) { return LoopOf(c).Cycle(c.arguments.positional); }},
  };
}

std::optional<Value> Loop::Attribute(const std::string& name) {
  if (name == "index") return Value::Int(index_ + 1);
  if (name == "index0") return Value::Int(index_);
  if (name == "first") return Value::Bool(index_ == 0);
  if (name == "last") return Value::Bool(IsLast());
  if (name == "length") return Value::Int(Length());
  if (name == "revindex") return Value::Int(Length() - index_);
  if (name == "revindex0") return Value::Int(Length() - index_ - 1);
  if (name == "depth") return Value::Int(1);
  if (name == "depth0") return Value::Int(0);
  if (name == "previtem") {
    return index_ == 0 ? Value::Undefined("there is no previous item") : previous_;
  }
  if (name == "nextitem") {
    return IsLast() ? Value::Undefined("there is no next item") : ahead_.front();
  }
  const Builtin* method = FindBuiltin(kLoopMethod, name);
  return method == nullptr ? std::nullopt : std::optional(Value::Of(method, Value::Of(this)));
}

}  // namespace lockstep::data::chat
