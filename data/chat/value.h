// The values of a template: Python's, as far as templates use them. Immutable, except namespaces.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "data/chat/budget.h"

namespace lockstep::data::chat {

class Value;
using List = std::vector<Value>;
struct Text;
struct Sequence;
struct Dict;
struct Method;

// A namespace, a macro, a global function or the state of a loop. Owned by the evaluator, so that
// namespaces may contain each other.
class Object {
 public:
  virtual ~Object() = default;
  virtual const char* type_name() const = 0;
  virtual bool callable() const { return false; }
  // nullopt if there is no such attribute.
  virtual std::optional<Value> Attribute(const std::string& name);
};

// kView is what dict.items() gives, and kGenerator what filters like map give: it has no length and
// no elements by index, and can be used once.
enum class Kind {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kRange,
  kView,
  kGenerator,
  kDict,
  kMethod,
  kObject
};

class Value {
 public:
  Value() = default;  // None
  static Value Undefined(std::string why);
  static Value Bool(bool value) { return Value(value); }
  static Value Int(int64_t value) { return Value(value); }
  static Value Float(double value) { return Value(value); }
  // `safe`: the result of the filter of that name.
  static Value String(std::string text, bool safe = false);
  // `kind` is one of kList to kGenerator.
  static Value Of(Kind kind, List items);
  // In the order of first occurrence; of equal keys the last value counts, as in Python.
  static Value Mapping(const std::vector<std::pair<Value, Value>>& items);
  static Value BoundMethod(Value self, std::string name);
  static Value Of(Object* object) { return Value(object); }
  // TemplateFailure for strings that are not UTF-8, integers beyond 64 bits and deep nesting.
  static Value FromJson(const nlohmann::ordered_json& json);

  Kind kind() const;
  bool Is(Kind kind) const { return this->kind() == kind; }
  bool IsSequence() const { return kind() >= Kind::kList && kind() <= Kind::kGenerator; }
  bool IsInteger() const { return Is(Kind::kInt) || Is(Kind::kBool); }  // bool is an int in Python
  bool IsNumber() const { return IsInteger() || Is(Kind::kFloat); }

  // Each for its kind only. References live as long as the value, so temporaries give none.
  const std::string& undefined_why() const&;
  bool boolean() const { return std::get<bool>(data_); }
  int64_t integer() const { return Is(Kind::kBool) ? boolean() : std::get<int64_t>(data_); }
  double number() const {
    return Is(Kind::kFloat) ? std::get<double>(data_) : static_cast<double>(integer());
  }
  const std::string& text() const&;
  const std::string& text() && = delete;
  bool safe() const;
  const List& items() const&;
  const List& items() && = delete;
  const Dict& dict() && = delete;
  const Method& method() && = delete;
  const Dict& dict() const& { return *std::get<std::shared_ptr<const Dict>>(data_); }
  const Method& method() const& { return *std::get<std::shared_ptr<const Method>>(data_); }
  Object* object() const { return std::get<Object*>(data_); }

  int nesting() const;  // 0 of a scalar, 1 of a list of scalars

 private:
  struct UndefinedTag {
    std::shared_ptr<const std::string> why;
  };
  template <class T>
  explicit Value(T data) : data_(std::move(data)) {}

  friend List Iterate(const Value& value);
  std::variant<std::monostate, UndefinedTag, bool, int64_t, double, std::shared_ptr<const Text>,
               std::shared_ptr<const Sequence>, std::shared_ptr<const Dict>,
               std::shared_ptr<const Method>, Object*>
      data_;
};

struct Text {
  Charge charge;
  std::string text;
  bool safe;
};

struct Sequence {
  Charge charge;
  Kind kind;
  List items;
  int nesting;
  mutable bool used = false;  // of a generator
};

struct Dict {
  Charge charge;
  std::vector<std::pair<Value, Value>> items;
  std::unordered_map<std::string, size_t> index;  // HashKey -> item
  int nesting;

  // nullptr if there is no such key.
  const Value* Find(const Value& key) const;
};

struct Method {
  Value self;
  std::string name;
};

// "str", "NoneType", ...
std::string TypeName(const Value& value);
// Equal for values that are equal keys in Python (1, 1.0 and True); nullopt for lists and dicts.
std::optional<std::string> HashKey(const Value& value);

bool Truthy(const Value& value);
bool Equal(const Value& a, const Value& b);
// a < b; `symbol` is for the message when the types cannot be compared.
bool Less(const Value& a, const Value& b, const char* symbol = "<");
// Of NaN false, as all comparisons with it.
bool LessOrEqual(const Value& a, const Value& b, const char* symbol);
bool Contains(const Value& container, const Value& element);

// str() and repr() of Python.
std::string Str(const Value& value);
std::string Repr(const Value& value);
// "1.5", "1e+16", "inf": as Python writes it.
std::string FloatText(double value);

// The elements that a for loop sees: of a string its characters, of a dict its keys.
List Iterate(const Value& value);
int64_t Length(const Value& value);
// The (key, value) tuples of a dict.
List ItemPairs(const Value& dict);

// Throws if the value is undefined.
void RequireDefined(const Value& value);
// The integer, or an error that names `what`.
int64_t RequireInteger(const Value& value, const char* what);

}  // namespace lockstep::data::chat
