#include "data/chat/value.h"

#include <algorithm>

#include "core/io/json.h"
#include "data/chat/text.h"
#include "data/utf8.h"

namespace lockstep::data::chat {
namespace {

// The nesting of a value that contains one of nesting `inner`.
int NestingAround(int inner) {
  if (inner >= kMaxNesting) Fail("values are nested deeper than ", kMaxNesting, " levels");
  return inner + 1;
}

}  // namespace

std::optional<Value> Object::Attribute(const std::string&) { return std::nullopt; }

Value Value::Undefined(std::string why) {
  return Value(UndefinedTag{std::make_shared<const std::string>(std::move(why))});
}

Value Value::String(std::string text, bool safe) {
  RequireTextFits(text.size());
  TextWork(text.size());
  const size_t bytes = sizeof(Text) + text.size();
  return Value(std::shared_ptr<const Text>(new Text{Charge(bytes), std::move(text), safe}));
}

Value Value::Of(Kind kind, List items) {
  Work(items.size());
  int deepest = 0;
  for (const Value& item : items) deepest = std::max(deepest, item.nesting());
  const int nesting = NestingAround(deepest);
  const size_t bytes = sizeof(Sequence) + items.size() * sizeof(Value);
  return Value(std::shared_ptr<const Sequence>(
      new Sequence{Charge(bytes), kind, std::move(items), nesting}));
}

Value Value::Mapping(const std::vector<std::pair<Value, Value>>& items) {
  std::unordered_map<std::string, size_t> index;
  std::vector<std::pair<Value, Value>> unique;
  size_t bytes = sizeof(Dict);
  int nesting = 1;
  for (const auto& [key, value] : items) {
    const std::string hash = RequireHashKey(key);
    TextWork(hash.size());
    nesting = std::max(nesting, NestingAround(std::max(key.nesting(), value.nesting())));
    const auto [it, added] = index.try_emplace(hash, unique.size());
    if (added) {
      unique.emplace_back(key, value);
      bytes += hash.size() + sizeof(unique[0]) + 64;  // 64: the node of the index, about
    } else {
      unique[it->second].second = value;
    }
  }
  return Value(std::shared_ptr<const Dict>(
      new Dict{Charge(bytes), std::move(unique), std::move(index), nesting}));
}

Value Value::Of(const Builtin* builtin, Value self) {
  NestingAround(self.nesting());
  return Value(std::make_shared<const Function>(Function{builtin, std::move(self)}));
}

Value Value::FromJson(const OrderedJson& json) {
  if (json.is_null()) return Value();
  if (json.is_boolean()) return Bool(json.get<bool>());
  if (json.is_number_float()) return Float(json.get<double>());
  if (json.is_number_unsigned() && json.get<uint64_t>() > INT64_MAX) {
    Fail("the integer ", json.get<uint64_t>(), " does not fit in 64 bits");
  }
  if (json.is_number()) return Int(json.get<int64_t>());
  if (json.is_string()) {
    const auto& text = json.string();
    const size_t valid = ValidUtf8Prefix(text);
    if (valid != text.size()) Fail("the text ", Quoted(text), " is not UTF-8 at byte ", valid);
    return String(text);
  }
  if (json.is_array()) {
    List items;
    for (const auto& item : json) items.push_back(FromJson(item));
    return Of(Kind::kList, std::move(items));
  }
  if (!json.is_object()) Fail("binary data is not JSON");
  std::vector<std::pair<Value, Value>> items;
  for (const auto& [key, value] : json.items()) items.emplace_back(FromJson(key), FromJson(value));
  return Mapping(items);
}

Kind Value::kind() const {
  static constexpr Kind kKinds[] = {Kind::kNone, Kind::kUndefined, Kind::kBool,
                                    Kind::kInt,  Kind::kFloat,     Kind::kString,
                                    Kind::kDict, Kind::kFunction,  Kind::kObject};
  const size_t index = data_.index();
  return index < std::size(kKinds) ? kKinds[index]
                                   : std::get<std::shared_ptr<const Sequence>>(data_)->kind;
}

bool Value::IsIndexed() const {
  return Is(Kind::kString) || Is(Kind::kList) || Is(Kind::kTuple) || Is(Kind::kRange);
}

int64_t Value::integer() const {
  return Is(Kind::kBool) ? std::get<bool>(data_) : std::get<int64_t>(data_);
}
double Value::number() const {
  return Is(Kind::kFloat) ? std::get<double>(data_) : static_cast<double>(integer());
}
const std::string& Value::text() const& {
  return std::get<std::shared_ptr<const Text>>(data_)->text;
}
bool Value::safe() const { return std::get<std::shared_ptr<const Text>>(data_)->safe; }
const List& Value::items() const& {
  return std::get<std::shared_ptr<const Sequence>>(data_)->items;
}
const Dict& Value::dict() const& { return *std::get<std::shared_ptr<const Dict>>(data_); }
const Function& Value::function() const& {
  return *std::get<std::shared_ptr<const Function>>(data_);
}

int Value::nesting() const {
  if (IsSequence()) return std::get<std::shared_ptr<const Sequence>>(data_)->nesting;
  if (Is(Kind::kDict)) return dict().nesting;
  return Is(Kind::kFunction) ? 1 + function().self.nesting() : 0;
}

const Value* Dict::Find(const std::string& hash_key) const {
  const auto it = index.find(hash_key);
  return it == index.end() ? nullptr : &items[it->second].second;
}

std::string TypeName(const Value& value) {
  static constexpr const char* kNames[] = {
      "Undefined", "NoneType", "bool", "int",   "float", "str",       "dict",
      "function",  "",         "list", "tuple", "range", "dict view", "generator"};
  if (value.Is(Kind::kObject)) return value.object()->type_name();
  return kNames[static_cast<size_t>(value.kind())];
}

std::optional<std::string> HashKey(const Value& value) {
  if (value.Is(Kind::kString)) return "s" + value.text();
  if (value.IsInteger()) return "i" + std::to_string(value.integer());
  if (value.Is(Kind::kNone)) return "n";
  if (value.Is(Kind::kUndefined)) return "u";
  if (value.Is(Kind::kGenerator)) return StrCat("g", static_cast<const void*>(&value.items()));
  if (value.Is(Kind::kObject)) return StrCat("o", static_cast<const void*>(value.object()));
  if (value.Is(Kind::kFloat)) {
    const double number = value.number();
    const bool in_range = number >= -0x1p63 && number < 0x1p63;
    const auto integer = in_range ? static_cast<int64_t>(number) : 0;
    return in_range && static_cast<double>(integer) == number ? "i" + std::to_string(integer)
                                                              : Str(value);
  }
  if (!value.Is(Kind::kTuple) && !value.Is(Kind::kRange)) return std::nullopt;
  std::string key = value.Is(Kind::kTuple) ? "(" : "r(";
  for (const Value& item : value.items()) {
    const std::optional<std::string> part = HashKey(item);
    if (!part) return std::nullopt;
    key += std::to_string(part->size()) + ":" + *part;
    RequireTextFits(key.size());
    TextWork(part->size());
  }
  return key;
}

std::string RequireHashKey(const Value& value) {
  std::optional<std::string> key = HashKey(value);
  if (!key) Fail("unhashable type: '", TypeName(value), "' cannot be a key");
  return *std::move(key);
}

bool Truthy(const Value& value) {
  if (value.IsInteger()) return value.integer() != 0;
  if (value.Is(Kind::kFloat)) return value.number() != 0;
  if (value.Is(Kind::kString)) return !value.text().empty();
  if (value.Is(Kind::kDict)) return !value.dict().items.empty();
  if (value.IsSequence()) return value.Is(Kind::kGenerator) || !value.items().empty();
  return value.Is(Kind::kFunction) || value.Is(Kind::kObject);
}

bool Equal(const Value& a, const Value& b) {
  Work(1);
  if (a.IsInteger() && b.IsInteger()) return a.integer() == b.integer();
  if (a.IsNumber() && b.IsNumber()) return a.number() == b.number();
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kString:
      TextWork(a.text().size());
      return a.text() == b.text();
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
      return std::ranges::equal(a.items(), b.items(), Equal);
    case Kind::kView:
    case Kind::kGenerator:
      return &a.items() == &b.items();
    case Kind::kDict:
      return a.dict().items.size() == b.dict().items.size() &&
             std::ranges::all_of(a.dict().items, [&](const auto& item) {
               const Value* other = b.dict().Find(*HashKey(item.first));
               return other != nullptr && Equal(item.second, *other);
             });
    case Kind::kFunction:
      return a.function().builtin == b.function().builtin &&
             Equal(a.function().self, b.function().self);
    case Kind::kObject:
      return a.object() == b.object();
    default:
      return true;  // None, undefined
  }
}

bool Less(const Value& a, const Value& b, const char* symbol) {
  Work(1);
  if (a.IsInteger() && b.IsInteger()) return a.integer() < b.integer();
  if (a.IsNumber() && b.IsNumber()) return a.number() < b.number();
  if (a.Is(Kind::kString) && b.Is(Kind::kString)) {
    TextWork(std::min(a.text().size(), b.text().size()));
    return a.text() < b.text();  // bytes of UTF-8 are in the order of code points
  }
  if (a.kind() == b.kind() && (a.Is(Kind::kList) || a.Is(Kind::kTuple))) {
    const size_t common = std::min(a.items().size(), b.items().size());
    for (size_t i = 0; i < common; ++i) {
      if (!Equal(a.items()[i], b.items()[i])) return Less(a.items()[i], b.items()[i], symbol);
    }
    return a.items().size() < b.items().size();
  }
  RequireDefined(a);
  RequireDefined(b);
  Fail("'", symbol, "' not supported between '", TypeName(a), "' and '", TypeName(b), "'");
}

bool Holds(std::string_view symbol, const Value& a, const Value& b) {
  if (symbol == "==") return Equal(a, b);
  if (symbol == "!=") return !Equal(a, b);
  if (symbol == "<") return Less(a, b);
  if (symbol == ">") return Less(b, a, ">");
  // Not the opposite of >: with NaN both are false.
  if (symbol == "<=") return Less(a, b, "<=") || Equal(a, b);
  if (symbol == ">=") return Less(b, a, ">=") || Equal(a, b);
  if (symbol == "not in") return !Holds("in", a, b);
  if (b.Is(Kind::kDict)) return b.dict().Find(RequireHashKey(a)) != nullptr;
  if (b.Is(Kind::kString)) {
    const std::string& part = RequireText(a, "what is looked for in a text");
    TextWork(b.text().size());
    return b.text().find(part) != std::string::npos;
  }
  if (!b.IsSequence() && !b.Is(Kind::kUndefined)) {
    Fail("argument of type '", TypeName(b), "' is not iterable");
  }
  return std::ranges::any_of(Iterate(b), [&](const Value& item) { return Equal(item, a); });
}

List Iterate(const Value& value) {
  List items;
  if (value.Is(Kind::kString)) {
    for (std::string& character : Characters(value.text())) {
      items.push_back(Value::String(std::move(character)));
    }
  } else if (value.Is(Kind::kDict)) {
    for (const auto& [key, unused] : value.dict().items) items.push_back(key);
  } else if (value.IsSequence()) {
    const auto& sequence = *std::get<std::shared_ptr<const Sequence>>(value.data_);
    if (sequence.kind == Kind::kGenerator && std::exchange(sequence.used, true)) {
      Fail("this generator was used before and is empty now; make a list of it with |list first");
    }
    items = sequence.items;
  } else if (!value.Is(Kind::kUndefined)) {
    Fail("'", TypeName(value), "' object is not iterable");
  }
  Work(items.size());
  return items;
}

int64_t Length(const Value& value) {
  if (value.Is(Kind::kUndefined)) return 0;
  if (value.Is(Kind::kDict)) return static_cast<int64_t>(value.dict().items.size());
  if (value.Is(Kind::kString)) {
    TextWork(value.text().size());
    return CountUtf8(value.text());
  }
  if (!value.IsSequence() || value.Is(Kind::kGenerator)) {
    Fail("object of type '", TypeName(value), "' has no length");
  }
  return static_cast<int64_t>(value.items().size());
}

List ItemPairs(const Value& dict) {
  List pairs;
  for (const auto& [key, value] : dict.dict().items) {
    pairs.push_back(Value::Of(Kind::kTuple, {key, value}));
  }
  return pairs;
}

void RequireDefined(const Value& value) {
  if (value.Is(Kind::kUndefined)) Fail(*std::get<Value::UndefinedTag>(value.data_).why);
}

int64_t RequireInteger(const Value& value, std::string_view what) {
  RequireDefined(value);
  if (!value.IsInteger()) Fail(what, " must be an integer, not '", TypeName(value), "'");
  return value.integer();
}

const std::string& RequireText(const Value& value, std::string_view what) {
  RequireDefined(value);
  if (!value.Is(Kind::kString)) Fail(what, " must be a text, not '", TypeName(value), "'");
  return value.text();
}

}  // namespace lockstep::data::chat
