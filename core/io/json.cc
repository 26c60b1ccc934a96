#include "core/io/json.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <ostream>
#include <set>

namespace lockstep {
namespace {

using Library = nlohmann::ordered_json;

// Builds the value from nlohmann's events, and stops at what Lockstep refuses.
template <class Value>
class Builder : public nlohmann::json_sax<Library> {
 public:
  explicit Builder(int max_depth) : max_depth_(static_cast<size_t>(max_depth)) {}

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(number_integer_t value) override { return Add(value); }
  bool number_unsigned(number_unsigned_t value) override { return Add(value); }
  bool number_float(number_float_t value, const string_t&) override { return Add(value); }
  bool string(string_t& value) override { return Add(std::move(value)); }
  bool binary(binary_t&) override { return Fail(": binary data"); }
  bool start_object(size_t) override { return Open(Value::object()); }
  bool start_array(size_t) override { return Open(Value::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(string_t& name) override {
    if (!open_.back().keys.insert(name).second) {
      return Fail(StrCat(": the key ", Quoted(name), " appears twice in one object"));
    }
    key_ = std::move(name);
    return true;
  }
  // The library's message is "[json.exception.parse_error.101] parse error at line 1, column 92:
  // syntax error while parsing ...", and quotes what was read last, however long that is.
  bool parse_error(size_t byte, const std::string&, const Library::exception& e) override {
    constexpr size_t kMostBytes = 200;
    std::string_view what = e.what();
    what.remove_prefix(std::min(what.find("] "), what.size() - 2) + 2);
    if (what.starts_with("parse error at")) what.remove_prefix(what.find(": ") + 2);
    return Fail(StrCat(": not valid JSON at byte ", byte, ": ", what.substr(0, kMostBytes)));
  }

  Value value;
  std::string error;  // follows the name of the source

 private:
  struct Level {
    Value value;
    std::string key;             // under which it belongs into the level around it
    std::set<std::string> keys;  // of an object
  };

  bool Fail(std::string message) {
    error = std::move(message);
    return false;
  }
  bool Add(Value item) {
    if (open_.empty()) {
      value = std::move(item);
    } else if (Value& around = open_.back().value; around.is_array()) {
      around.push_back(std::move(item));
    } else if constexpr (std::is_same_v<Value, Json>) {
      around.items().emplace(std::move(key_), std::move(item));
    } else {
      around.items().emplace_back(std::move(key_), std::move(item));
    }
    return true;
  }
  bool Open(Value opened) {
    if (open_.size() >= max_depth_) {
      return Fail(StrCat(": nested deeper than ", max_depth_, " levels"));
    }
    open_.push_back({std::move(opened), std::move(key_), {}});
    return true;
  }
  bool Close() {
    Level closed = std::move(open_.back());
    open_.pop_back();
    key_ = std::move(closed.key);
    return Add(std::move(closed.value));
  }

  const size_t max_depth_;
  std::vector<Level> open_;
  std::string key_;
};

template <class Value>
Value Parse(std::string_view text, std::string_view source, int max_depth) {
  Builder<Value> builder(max_depth);
  if (!Library::sax_parse(text.begin(), text.end(), &builder)) {
    throw InputError(StrCat(source, builder.error));
  }
  return std::move(builder.value);
}

template <class Value>
Library ToLibrary(const Value& value) {
  if (value.is_null()) return nullptr;
  if (value.is_boolean()) return value.template get<bool>();
  if (value.is_number_unsigned()) return value.template get<uint64_t>();
  if (value.is_number_integer()) return value.template get<int64_t>();
  if (value.is_number_float()) return value.template get<double>();
  if (value.is_string()) return value.string();
  if (value.is_discarded()) return Library(Library::value_t::discarded);
  Library made = value.is_array() ? Library::array() : Library::object();
  if (value.is_array()) {
    for (const Value& item : value) made.push_back(ToLibrary(item));
  } else {
    auto& fields = made.template get_ref<Library::object_t&>();
    for (const auto& [key, field] : value.items()) {
      fields.Library::object_t::Container::emplace_back(key, ToLibrary(field));
    }
  }
  return made;
}

// For messages: a value may be a whole file.
template <class Value>
std::string Shown(const Value& value) {
  constexpr size_t kMostBytes = 200;
  const std::string text = value.dump();
  return text.size() > kMostBytes ? text.substr(0, kMostBytes) + "..." : text;
}

}  // namespace

template <bool kSorted>
BasicJson<kSorted>::BasicJson(std::string text)
    : kind_(Kind::kString), string_(new std::string(std::move(text))) {}

template <bool kSorted>
BasicJson<kSorted>::BasicJson(Array items)
    : kind_(Kind::kArray), array_(new Array(std::move(items))) {}

template <bool kSorted>
BasicJson<kSorted>::BasicJson(Object fields)
    : kind_(Kind::kObject), object_(new Object(std::move(fields))) {}

template <bool kSorted>
BasicJson<kSorted>::BasicJson(std::initializer_list<BasicJson> list) : BasicJson() {
  const bool is_object = std::ranges::all_of(list, [](const BasicJson& item) {
    return item.is_array() && item.size() == 2 && item.front().is_string();
  });
  *this = is_object ? object(list) : array(list);
}

template <bool kSorted>
BasicJson<kSorted>::BasicJson(const BasicJson<!kSorted>& other) : BasicJson() {
  if (other.is_array()) {
    *this = Array(other.begin(), other.end());
  } else if (other.is_object()) {
    *this = Object(other.items().begin(), other.items().end());
  } else if (other.is_string()) {
    *this = other.string();
  } else if (other.is_number_unsigned()) {
    *this = other.template get<uint64_t>();
  } else if (other.is_number_integer()) {
    *this = other.template get<int64_t>();
  } else if (other.is_number_float()) {
    *this = other.template get<double>();
  } else if (other.is_boolean()) {
    *this = other.template get<bool>();
  } else if (other.is_discarded()) {
    *this = discarded();
  }
}

template <bool kSorted>
BasicJson<kSorted>::BasicJson(const BasicJson& other) : BasicJson() {
  switch (other.kind_) {
    case Kind::kString:
      string_ = new std::string(*other.string_);
      break;
    case Kind::kArray:
      array_ = new Array(*other.array_);
      break;
    case Kind::kObject:
      object_ = new Object(*other.object_);
      break;
    default:
      unsigned_ = other.unsigned_;
  }
  kind_ = other.kind_;
}

template <bool kSorted>
BasicJson<kSorted>::~BasicJson() {
  if (kind_ == Kind::kString) delete string_;
  if (kind_ == Kind::kArray) delete array_;
  if (kind_ == Kind::kObject) delete object_;
}

template <bool kSorted>
void BasicJson<kSorted>::swap(BasicJson& other) noexcept {
  std::swap(kind_, other.kind_);
  std::swap(unsigned_, other.unsigned_);
}

template <bool kSorted>
BasicJson<kSorted> BasicJson<kSorted>::object(std::initializer_list<BasicJson> fields) {
  BasicJson made = Object();
  for (const BasicJson& field : fields) made.emplace(field.at(0).string(), field.at(1));
  return made;
}

template <bool kSorted>
BasicJson<kSorted> BasicJson<kSorted>::parse(std::string_view text) {
  constexpr int kMaxDepth = 512;
  return Parse<BasicJson>(text, "JSON", kMaxDepth);
}

template <bool kSorted>
BasicJson<kSorted> BasicJson<kSorted>::discarded() {
  BasicJson made;
  made.kind_ = Kind::kDiscarded;
  return made;
}

template <bool kSorted>
const char* BasicJson<kSorted>::type_name() const {
  static constexpr const char* kNames[] = {"null",   "boolean", "number", "number",   "number",
                                           "string", "array",   "object", "discarded"};
  return kNames[static_cast<size_t>(kind_)];
}

template <bool kSorted>
void BasicJson<kSorted>::NotA(const char* wanted) const {
  throw JsonError(StrCat(Shown(*this), " is not ", wanted));
}

template <bool kSorted>
bool BasicJson<kSorted>::ToBoolean() const {
  if (!is_boolean()) NotA("true or false");
  return boolean_;
}

template <bool kSorted>
double BasicJson<kSorted>::ToDouble() const {
  if (kind_ == Kind::kInteger) return static_cast<double>(integer_);
  if (kind_ == Kind::kUnsigned) return static_cast<double>(unsigned_);
  if (!is_number_float()) NotA("a number");
  return float_;
}

template <bool kSorted>
int64_t BasicJson<kSorted>::ToSigned(int64_t least, int64_t most) const {
  if (!is_number_integer()) NotA("an integer");
  if (is_number_unsigned() && unsigned_ > static_cast<uint64_t>(most)) {
    throw JsonError(StrCat(unsigned_, " is above ", most));
  }
  if (integer_ < least || integer_ > most) {
    throw JsonError(StrCat(integer_, " is not between ", least, " and ", most));
  }
  return integer_;
}

template <bool kSorted>
uint64_t BasicJson<kSorted>::ToUnsigned(uint64_t most) const {
  if (!is_number_integer()) NotA("an integer");
  if (kind_ == Kind::kInteger && integer_ < 0) throw JsonError(StrCat(integer_, " is below 0"));
  if (unsigned_ > most) throw JsonError(StrCat(unsigned_, " is above ", most));
  return unsigned_;
}

template <bool kSorted>
const std::string& BasicJson<kSorted>::string() const {
  if (!is_string()) NotA("a text");
  return *string_;
}

template <bool kSorted>
std::string& BasicJson<kSorted>::string() {
  return const_cast<std::string&>(std::as_const(*this).string());
}

template <bool kSorted>
size_t BasicJson<kSorted>::size() const {
  if (is_null()) return 0;
  if (is_string()) return string_->size();
  return is_array() ? array_->size() : is_object() ? object_->size() : 1;
}

template <bool kSorted>
const typename BasicJson<kSorted>::Array& BasicJson<kSorted>::items_or_none() const {
  static const Array kNone;
  if (is_null()) return kNone;
  if (!is_array()) NotA("a list");
  return *array_;
}

template <bool kSorted>
typename BasicJson<kSorted>::Array& BasicJson<kSorted>::items_or_none() {
  return const_cast<Array&>(std::as_const(*this).items_or_none());
}

template <bool kSorted>
const BasicJson<kSorted>& BasicJson<kSorted>::Item(size_t index) const {
  const Array& items = items_or_none();
  if (index >= items.size()) {
    throw JsonError(StrCat("there is no item ", index, " in a list of ", items.size()));
  }
  return items[index];
}

template <bool kSorted>
void BasicJson<kSorted>::push_back(BasicJson item) {
  list().push_back(std::move(item));
}

template <bool kSorted>
typename BasicJson<kSorted>::Array& BasicJson<kSorted>::list() {
  if (is_null()) *this = Array();
  return items_or_none();
}

template <bool kSorted>
const typename BasicJson<kSorted>::Object& BasicJson<kSorted>::items() const {
  static const Object kNone;
  if (is_null()) return kNone;
  if (!is_object()) NotA("an object");
  return *object_;
}

template <bool kSorted>
typename BasicJson<kSorted>::Object& BasicJson<kSorted>::items() {
  if (is_null()) *this = Object();
  return const_cast<Object&>(std::as_const(*this).items());
}

template <bool kSorted>
const BasicJson<kSorted>* BasicJson<kSorted>::Find(std::string_view key) const {
  if (!is_object()) return nullptr;
  if constexpr (kSorted) {
    const auto field = object_->find(key);
    return field == object_->end() ? nullptr : &field->second;
  } else {
    const auto field = std::ranges::find(*object_, key, &Object::value_type::first);
    return field == object_->end() ? nullptr : &field->second;
  }
}

template <bool kSorted>
BasicJson<kSorted>* BasicJson<kSorted>::Find(std::string_view key) {
  return const_cast<BasicJson*>(std::as_const(*this).Find(key));
}

template <bool kSorted>
const BasicJson<kSorted>* BasicJson<kSorted>::FieldOf(std::string_view key) const {
  if (!is_object()) throw JsonError(StrCat(Shown(*this), " is no object with ", Quoted(key)));
  return Find(key);
}

template <bool kSorted>
const BasicJson<kSorted>& BasicJson<kSorted>::at(std::string_view key) const {
  if (const BasicJson* field = FieldOf(key)) return *field;
  throw JsonError(StrCat("there is no ", Quoted(key), " in ", Shown(*this)));
}

template <bool kSorted>
BasicJson<kSorted>& BasicJson<kSorted>::at(std::string_view key) {
  return const_cast<BasicJson&>(std::as_const(*this).at(key));
}

template <bool kSorted>
BasicJson<kSorted>& BasicJson<kSorted>::operator[](std::string_view key) {
  emplace(key, nullptr);
  return *Find(key);
}

template <bool kSorted>
bool BasicJson<kSorted>::emplace(std::string_view key, BasicJson value) {
  Object& fields = items();
  if (Find(key) != nullptr) return false;
  if constexpr (kSorted) {
    fields.emplace(key, std::move(value));
  } else {
    fields.emplace_back(key, std::move(value));
  }
  return true;
}

template <bool kSorted>
bool BasicJson<kSorted>::erase(std::string_view key) {
  return std::erase_if(items(), [&](const auto& field) { return field.first == key; }) != 0;
}

template <bool kSorted>
void BasicJson<kSorted>::update(const BasicJson& other) {
  for (const auto& [key, field] : other.items()) (*this)[key] = field;
}

template <bool kSorted>
std::string BasicJson<kSorted>::dump(int indent, bool ascii_only) const {
  return ToLibrary(*this).dump(indent, ' ', ascii_only, Library::error_handler_t::replace);
}

template <bool kSorted>
bool BasicJson<kSorted>::Equals(const BasicJson& other) const {
  if (is_number() && other.is_number()) {
    if (is_number_float() || other.is_number_float()) return ToDouble() == other.ToDouble();
    const bool negative = kind_ == Kind::kInteger && integer_ < 0;
    return unsigned_ == other.unsigned_ &&
           negative == (other.kind_ == Kind::kInteger && other.integer_ < 0);
  }
  if (kind_ != other.kind_) return false;
  switch (kind_) {
    case Kind::kBoolean:
      return boolean_ == other.boolean_;
    case Kind::kString:
      return *string_ == *other.string_;
    case Kind::kArray:
      return *array_ == *other.array_;
    case Kind::kObject:
      return *object_ == *other.object_;
    default:
      return is_null();
  }
}

template <bool kSorted>
std::ostream& BasicJson<kSorted>::Print(std::ostream& out) const {
  return out << dump();
}

template class BasicJson<true>;
template class BasicJson<false>;

Json ParseJson(std::string_view text, std::string_view source, int max_depth) {
  return Parse<Json>(text, source, max_depth);
}

OrderedJson ParseOrderedJson(std::string_view text, std::string_view source, int max_depth) {
  return Parse<OrderedJson>(text, source, max_depth);
}

Json TryParseJson(std::string_view text) {
  try {
    return Json::parse(text);
  } catch (const InputError&) {
    return Json::discarded();
  }
}

int64_t IntegerOf(const Json& value, int64_t least, int64_t most) {
  if (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX) {
    throw InputError(StrCat(value, " is too large"));
  }
  if (!value.is_number_integer()) throw InputError(StrCat(value, " is not an integer"));
  const auto integer = value.get<int64_t>();
  if (integer < least || integer > most) {
    throw InputError(StrCat(integer, " is not between ", least, " and ", most));
  }
  return integer;
}

std::vector<int64_t> IntegersOf(const Json& array) {
  if (!array.is_array()) throw InputError(StrCat(array, " is not a list"));
  std::vector<int64_t> integers;
  for (const Json& value : array) integers.push_back(IntegerOf(value));
  return integers;
}

std::string Quoted(std::string_view text) {
  constexpr size_t kMaxBytes = 80;
  std::string out = "\"";
  for (const char c : text.substr(0, kMaxBytes)) {
    const unsigned char byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7f) {
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\x%02x", byte);
      out += escaped;
    } else {
      out += c;
    }
  }
  return out + (text.size() > kMaxBytes ? "...\"" : "\"");
}

}  // namespace lockstep
