#include "data/chat/value.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/io/json.h"
#include "data/chat/text.h"
#include "data/utf8.h"

namespace lockstep::data::chat {
namespace {

int DeepestOf(const List& items) {
  int deepest = 0;
  for (const Value& item : items) deepest = std::max(deepest, item.nesting());
  if (deepest >= kMaxNesting) Fail("values are nested deeper than ", kMaxNesting, " levels");
  return 1 + deepest;
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
  const int nesting = DeepestOf(items);
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
    const std::optional<std::string> hash = HashKey(key);
    if (!hash) Fail("unhashable type: '", TypeName(key), "' cannot be the key of a dict");
    TextWork(hash->size());
    nesting = std::max(nesting, DeepestOf({key, value}));
    const auto [it, added] = index.try_emplace(*hash, unique.size());
    if (added) {
      unique.emplace_back(key, value);
      bytes += hash->size() + sizeof(unique[0]) + 64;  // 64: the node of the index, about
    } else {
      unique[it->second].second = value;
    }
  }
  return Value(std::shared_ptr<const Dict>(
      new Dict{Charge(bytes), std::move(unique), std::move(index), nesting}));
}

Value Value::BoundMethod(Value self, std::string name) {
  DeepestOf({self});
  return Value(std::make_shared<const Method>(Method{std::move(self), std::move(name)}));
}

Value Value::FromJson(const nlohmann::ordered_json& json) {
  switch (json.type()) {
    case nlohmann::json::value_t::null:
      return Value();
    case nlohmann::json::value_t::boolean:
      return Bool(json.get<bool>());
    case nlohmann::json::value_t::number_unsigned:
      if (json.get<uint64_t>() > INT64_MAX) {
        Fail("the integer ", json.get<uint64_t>(), " does not fit in 64 bits");
      }
      [[fallthrough]];
    case nlohmann::json::value_t::number_integer:
      return Int(json.get<int64_t>());
    case nlohmann::json::value_t::number_float:
      return Float(json.get<double>());
    case nlohmann::json::value_t::string: {
      const auto& text = json.get_ref<const std::string&>();
      if (ValidUtf8Prefix(text) != text.size()) {
        Fail("the text ", Quoted(text), " is not UTF-8 at byte ", ValidUtf8Prefix(text));
      }
      return String(text);
    }
    case nlohmann::json::value_t::array: {
      List items;
      for (const auto& item : json) items.push_back(FromJson(item));
      return Of(Kind::kList, std::move(items));
    }
    case nlohmann::json::value_t::object: {
      std::vector<std::pair<Value, Value>> items;
      for (const auto& [key, value] : json.items()) {
        items.emplace_back(FromJson(key), FromJson(value));
      }
      return Mapping(items);
    }
    default:
      Fail("binary data is not JSON");
  }
}

Kind Value::kind() const {
  switch (data_.index()) {
    case 0:
      return Kind::kNone;
    case 1:
      return Kind::kUndefined;
    case 2:
      return Kind::kBool;
    case 3:
      return Kind::kInt;
    case 4:
      return Kind::kFloat;
    case 5:
      return Kind::kString;
    case 6:
      return std::get<std::shared_ptr<const Sequence>>(data_)->kind;
    case 7:
      return Kind::kDict;
    case 8:
      return Kind::kMethod;
    default:
      return Kind::kObject;
  }
}

const std::string& Value::undefined_why() const& { return *std::get<UndefinedTag>(data_).why; }
const std::string& Value::text() const& {
  return std::get<std::shared_ptr<const Text>>(data_)->text;
}
bool Value::safe() const { return std::get<std::shared_ptr<const Text>>(data_)->safe; }
const List& Value::items() const& {
  return std::get<std::shared_ptr<const Sequence>>(data_)->items;
}

int Value::nesting() const {
  if (IsSequence()) return std::get<std::shared_ptr<const Sequence>>(data_)->nesting;
  if (Is(Kind::kDict)) return dict().nesting;
  if (Is(Kind::kMethod)) return 1 + method().self.nesting();
  return 0;
}

const Value* Dict::Find(const Value& key) const {
  const std::optional<std::string> hash = HashKey(key);
  if (!hash) return nullptr;
  const auto it = index.find(*hash);
  return it == index.end() ? nullptr : &items[it->second].second;
}

std::string TypeName(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kRange:
      return "range";
    case Kind::kView:
      return "dict view";
    case Kind::kGenerator:
      return "generator";
    case Kind::kDict:
      return "dict";
    case Kind::kMethod:
      return "method";
    case Kind::kObject:
      break;
  }
  return value.object()->type_name();
}

std::optional<std::string> HashKey(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return "u";
    case Kind::kNone:
      return "n";
    case Kind::kBool:
    case Kind::kInt:
      return "i" + std::to_string(value.integer());
    case Kind::kFloat: {
      const double number = value.number();
      const bool integral = number >= -0x1p63 && number < 0x1p63 &&
                            number == static_cast<double>(static_cast<int64_t>(number));
      return integral ? "i" + std::to_string(static_cast<int64_t>(number)) : FloatText(number);
    }
    case Kind::kString:
      return "s" + value.text();
    case Kind::kGenerator:
      return StrCat("g", static_cast<const void*>(&value.items()));
    case Kind::kObject:
      return StrCat("o", static_cast<const void*>(value.object()));
    case Kind::kTuple:
    case Kind::kRange: {
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
    default:
      return std::nullopt;
  }
}

List Iterate(const Value& value) {
  List items;
  if (value.Is(Kind::kUndefined)) return items;
  if (value.Is(Kind::kString)) {
    for (const std::string& character : Characters(value.text())) {
      items.push_back(Value::String(character));
    }
  } else if (value.Is(Kind::kDict)) {
    for (const auto& [key, unused] : value.dict().items) items.push_back(key);
  } else if (value.IsSequence()) {
    const auto& sequence = *std::get<std::shared_ptr<const Sequence>>(value.data_);
    if (sequence.kind == Kind::kGenerator && std::exchange(sequence.used, true)) {
      Fail("this generator was used before and is empty now; make a list of it with |list first");
    }
    items = sequence.items;
  } else {
    Fail("'", TypeName(value), "' object is not iterable");
  }
  Work(items.size());
  return items;
}

int64_t Length(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      TextWork(value.text().size());
      return CountUtf8(value.text());
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
    case Kind::kView:
      return static_cast<int64_t>(value.items().size());
    case Kind::kDict:
      return static_cast<int64_t>(value.dict().items.size());
    default:
      Fail("object of type '", TypeName(value), "' has no length");
  }
}

List ItemPairs(const Value& dict) {
  List pairs;
  for (const auto& [key, value] : dict.dict().items) {
    pairs.push_back(Value::Of(Kind::kTuple, {key, value}));
  }
  return pairs;
}

void RequireDefined(const Value& value) {
  if (value.Is(Kind::kUndefined)) Fail(value.undefined_why());
}

int64_t RequireInteger(const Value& value, const char* what) {
  RequireDefined(value);
  if (!value.IsInteger()) Fail(what, " must be an integer, not '", TypeName(value), "'");
  return value.integer();
}

}  // namespace lockstep::data::chat
