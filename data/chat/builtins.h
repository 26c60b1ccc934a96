// What templates call: filters (value|name), tests (value is name), methods and global functions,
// each a line in a table.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/chat/value.h"

namespace lockstep::data::chat {

enum class BuiltinKind {
  kFunction,
  kFilter,
  kTest,
  kTextMethod,
  kListMethod,
  kDictMethod,
  kLoopMethod
};

// The arguments of a call as they are given.
struct Arguments {
  List positional;
  std::vector<std::pair<std::string, Value>> named;
};

// The arguments in the order of `names`, each nullopt if it is not given. Throws for arguments
// beyond these.
std::vector<std::optional<Value>> Bind(std::string_view function, const Arguments& arguments,
                                       const std::vector<std::string>& names);

// What the calls of one rendering share.
struct Rendering {
  // Objects live as long as the rendering: their memory is not returned to the budget.
  template <class T, class... Args>
  T* Own(Args&&... args) {
    Budget::Current()->Take(sizeof(T) + 256);
    auto object = std::make_unique<T>(std::forward<Args>(args)...);
    T* const pointer = object.get();
    objects.push_back(std::move(object));
    return pointer;
  }

  int64_t now;  // seconds since 1970, for strftime_now
  std::vector<std::unique_ptr<Object>> objects;
};

// A call of a builtin.
struct Call {
  const Builtin& builtin;
  Rendering* rendering;
  const Value& self;           // the value that is filtered or tested, the object of a method
  const Arguments& arguments;  // as they are given
  List bound;                  // by parameter, defaults included

  const std::string& Text(size_t i) const {
    return bound[i].Is(Kind::kString) ? bound[i].text() : RequireText(bound[i], Name(i));
  }
  int64_t Integer(size_t i) const {
    return bound[i].IsInteger() ? bound[i].integer() : RequireInteger(bound[i], Name(i));
  }
  bool Flag(size_t i) const { return Truthy(bound[i]); }
  bool Has(size_t i) const { return !bound[i].Is(Kind::kNone); }
  std::optional<std::string> OptionalText(size_t i) const {
    return Has(i) ? std::optional(Text(i)) : std::nullopt;
  }
  // "the argument 'width' of indent", for messages.
  std::string Name(size_t i) const;
};

inline Value ToValue(Value value) { return value; }
inline Value ToValue(bool value) { return Value::Bool(value); }
inline Value ToValue(int64_t value) { return Value::Int(value); }
inline Value ToValue(std::string value) { return Value::String(std::move(value)); }

struct Builtin {
  // `names`: the name, and other names, with spaces between them. `parameters`: "old new count=-1";
  // a default is none, false, an integer or a text; "*" takes any arguments, and binds none.
  template <class Body>
  Builtin(BuiltinKind kind, std::string_view names, std::string_view parameters, Body body)
      : Builtin(kind, names, parameters) {
    function = [body](const Call& call) { return ToValue(body(call)); };
  }

  BuiltinKind kind;
  std::string name;
  std::vector<std::string> names;
  std::vector<std::string> parameters;
  std::vector<std::optional<std::string>> defaults;
  bool variadic;
  std::function<Value(const Call&)> function;

 private:
  Builtin(BuiltinKind kind, std::string_view names, std::string_view parameters);
};

// nullptr if there is none.
const Builtin* FindBuiltin(BuiltinKind kind, std::string_view name);
// An error names those that there are.
const Builtin& RequireBuiltin(BuiltinKind kind, std::string_view name);
// The bound method, or nullopt if such objects have no method of that name. Undefined, with the
// reason, if Python has it but templates may not call it: it changes its object, or is not
// supported.
std::optional<Value> FindMethod(const Value& object, const std::string& name);

Value Apply(const Builtin& builtin, const Value& self, const Arguments& arguments,
            Rendering* rendering);

// The tables.
std::vector<Builtin> FilterTable();
std::vector<Builtin> TestTable();
std::vector<Builtin> MethodTable();
std::vector<Builtin> FunctionTable();

}  // namespace lockstep::data::chat
