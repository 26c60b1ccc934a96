// The values of a template: Python's, as far as templates use them. Immutable, except namespaces.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "core/io/json.h"
#include "data/chat/budget.h"

namespace lockstep::data::chat {

class Value;
using List = std::vector<Value>;
struct Builtin;
struct Text;
struct Sequence;
struct Dict;
struct Function;

// A namespace, a macro or the state of a loop. Owned by the evaluator, so that namespaces may
// contain each other.
class Object {
 public:
  virtual ~Object() = default;
  virtual const char* type_name() const = 0;
  virtual bool callable() const { return false; }
  // nullopt if there is no such attribute.
  virtual std::optional<Value> Attribute(const std::string& name);
};

// kView is what dict.items() returns, and kGenerator what filters like map return: a generator has
// no length and no elements by index, and can be used once. kFunction is a global function or a
// bound method.
enum class Kind {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kDict,
  kFunction,
  kObject,
  kList,
  kTuple,
  kRange,
  kView,
  kGenerator
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
  // `self`: the object of a method.
  static Value Of(const Builtin* builtin, Value self = Value());
  static Value Of(Object* object) { return Value(object); }
  // TemplateFailure for strings that are not UTF-8, integers beyond 64 bits and deep nesting.
  static Value FromJson(const OrderedJson& json);

  Kind kind() const;
  bool Is(Kind kind) const { return this->kind() == kind; }
  bool IsSequence() const { return kind() >= Kind::kList; }
  bool IsInteger() const { return Is(Kind::kInt) || Is(Kind::kBool); }  // bool is an int in Python
  bool IsNumber() const { return IsInteger() || Is(Kind::kFloat); }
  // Whether it has elements by index, and slices.
  bool IsIndexed() const;

  // Each is for its kind only. References live as long as the value, so a temporary returns none.
  int64_t integer() const;  // also of a bool
  double number() const;    // of any number
  const std::string& text() const&;
  bool safe() const;
  const List& items() const&;
  const Dict& dict() const&;
  const Function& function() const&;
  Object* object() const { return std::get<Object*>(data_); }
  const std::string& text() && = delete;
  const List& items() && = delete;
  const Dict& dict() && = delete;
  const Function& function() && = delete;

  int nesting() const;  // 0 of a scalar, 1 of a list of scalars

 private:
  struct UndefinedTag {
    std::shared_ptr<const std::string> why;
  };
  template <class T>
  explicit Value(T data) : data_(std::move(data)) {}

  friend List Iterate(const Value& value);
  friend void RequireDefined(const Value& value);
  std::variant<std::monostate, UndefinedTag, bool, int64_t, double, std::shared_ptr<const Text>,
               std::shared_ptr<const Dict>, std::shared_ptr<const Function>, Object*,
               std::shared_ptr<const Sequence>>
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
  const Value* Find(const std::string& hash_key) const;
};

struct Function {
  const Builtin* builtin;
  Value self;
};

// "str", "NoneType", ...
std::string TypeName(const Value& value);
// Equal for values that are equal keys in Python (1, 1.0 and True); nullopt for lists and dicts.
std::optional<std::string> HashKey(const Value& value);
std::string RequireHashKey(const Value& value);

bool Truthy(const Value& value);
bool Equal(const Value& a, const Value& b);
// a < b; `symbol` is for the message when the types cannot be compared.
bool Less(const Value& a, const Value& b, const char* symbol = "<");
// a `symbol` b: one of == != < <= > >= in, not in.
bool Holds(std::string_view symbol, const Value& a, const Value& b);

// The elements that a for loop sees: the characters of a string, the keys of a dict.
List Iterate(const Value& value);
int64_t Length(const Value& value);
// The (key, value) tuples of a dict.
List ItemPairs(const Value& dict);

// Throws if the value is undefined.
void RequireDefined(const Value& value);
// The integer or text, or an error that names `what`.
int64_t RequireInteger(const Value& value, std::string_view what);
const std::string& RequireText(const Value& value, std::string_view what);

// In operators.cc. `symbol` is one of + - * / // % **; integers of more than 64 bits are errors.
Value Arithmetic(std::string_view symbol, const Value& a, const Value& b);
Value Negate(const Value& value);
// object.name: methods and attributes first, then the key of a dict. Undefined if there is neither.
Value GetAttribute(const Value& object, const std::string& name);
// object[key]: elements first, then methods and attributes.
Value GetItem(const Value& object, const Value& key);
// object[begin:end:step]; None for what is absent.
Value GetSlice(const Value& object, const Value& begin, const Value& end, const Value& step);

// In printing.cc: str() of Python, and what its json.dumps writes.
std::string Str(const Value& value);
struct JsonFormat {
  bool ensure_ascii = false, sort_keys = false;
  std::optional<std::string> indent;
  std::string item_separator = ", ", key_separator = ": ";
};
std::string ToJson(const Value& value, const JsonFormat& format);

}  // namespace lockstep::data::chat
