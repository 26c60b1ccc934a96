// JSON values. Parser and serializer are nlohmann's, which only json.cc includes: its header costs
// a file seconds. The interface is nlohmann's too, as far as Lockstep uses it, but stricter: a
// number that the type asked for cannot hold is an error, and so is a key that occurs twice.
#pragma once

#include <array>
#include <compare>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/error.h"

namespace lockstep {

// A value that is missing, or of another kind than was asked for. what() says which.
class JsonError : public InputError {
 public:
  using InputError::InputError;
};

template <bool kSorted>
class BasicJson;
using Json = BasicJson<true>;          // objects are sorted by key
using OrderedJson = BasicJson<false>;  // objects keep the order of the file; a search is linear

namespace internal {

template <class T>
struct IsJsonList : std::false_type {};
template <class T>
struct IsJsonList<std::vector<T>> : std::true_type {};
template <class T>
struct IsJsonMap : std::false_type {};
template <class T>
struct IsJsonMap<std::map<std::string, T>> : std::true_type {};

template <class T>
concept Arithmetic = std::is_arithmetic_v<T>;

// What a value converts to.
template <class T>
concept FromJson = (Arithmetic<T> && !std::is_same_v<T, char>) || std::is_same_v<T, std::string> ||
                   IsJsonList<T>::value || IsJsonMap<T>::value;

}  // namespace internal

template <bool kSorted>
class BasicJson {
 public:
  using Array = std::vector<BasicJson>;
  using value_type = BasicJson;
  using const_iterator = const BasicJson*;
  using Object = std::conditional_t<kSorted, std::map<std::string, BasicJson, std::less<>>,
                                    std::vector<std::pair<std::string, BasicJson>>>;

  BasicJson() noexcept : kind_(Kind::kNull) {}
  BasicJson(std::nullptr_t) noexcept : BasicJson() {}
  template <internal::Arithmetic T>
  BasicJson(T value) noexcept {
    if constexpr (std::is_same_v<T, bool>) {
      kind_ = Kind::kBoolean;
      boolean_ = value;
    } else if constexpr (std::is_floating_point_v<T>) {
      kind_ = Kind::kFloat;
      float_ = value;
    } else if constexpr (std::is_signed_v<T>) {
      kind_ = Kind::kInteger;
      integer_ = value;
    } else {
      kind_ = Kind::kUnsigned;
      unsigned_ = value;
    }
  }
  BasicJson(std::string text);
  BasicJson(std::string_view text) : BasicJson(std::string(text)) {}
  BasicJson(const char* text) : BasicJson(std::string(text)) {}
  BasicJson(Array items);
  BasicJson(Object fields);
  template <class T>
  BasicJson(const std::vector<T>& items) : BasicJson(Array(items.begin(), items.end())) {}
  template <class T, size_t kSize>
  BasicJson(const std::array<T, kSize>& items) : BasicJson(Array(items.begin(), items.end())) {}
  template <class Key, class T>
  BasicJson(const std::map<Key, T>& fields) : BasicJson(Object(fields.begin(), fields.end())) {}
  // An object if each element is a list of a string and a value; otherwise an array.
  BasicJson(std::initializer_list<BasicJson> list);
  BasicJson(const BasicJson<!kSorted>& other);
  BasicJson(const BasicJson& other);
  BasicJson(BasicJson&& other) noexcept : BasicJson() { swap(other); }
  BasicJson& operator=(BasicJson other) noexcept {
    swap(other);
    return *this;
  }
  ~BasicJson();
  void swap(BasicJson& other) noexcept;

  static BasicJson array(std::initializer_list<BasicJson> items = {}) { return Array(items); }
  static BasicJson object(std::initializer_list<BasicJson> fields = {});
  // InputError for what ParseJson refuses.
  static BasicJson parse(std::string_view text);

  bool is_null() const { return kind_ == Kind::kNull; }
  bool is_boolean() const { return kind_ == Kind::kBoolean; }
  bool is_number() const { return is_number_integer() || is_number_float(); }
  bool is_number_integer() const { return kind_ == Kind::kInteger || is_number_unsigned(); }
  bool is_number_unsigned() const { return kind_ == Kind::kUnsigned; }
  bool is_number_float() const { return kind_ == Kind::kFloat; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_array() const { return kind_ == Kind::kArray; }
  bool is_object() const { return kind_ == Kind::kObject; }
  bool is_structured() const { return is_array() || is_object(); }
  // What TryParseJson returns for text that is not JSON.
  bool is_discarded() const { return kind_ == Kind::kDiscarded; }
  static BasicJson discarded();
  // "null", "boolean", "number", "string", "array" or "object".
  const char* type_name() const;

  // The value as a T: integers must be in T's range, and lists and objects hold what converts.
  template <class T>
  T get() const;
  template <internal::FromJson T>
  operator T() const {
    return get<T>();
  }
  const std::string& string() const;
  std::string& string();

  // Of a string its bytes, of null 0, of other scalars 1.
  size_t size() const;
  bool empty() const { return size() == 0; }

  // Arrays; null has no elements, and becomes an array when one is added.
  const BasicJson* begin() const { return items_or_none().data(); }
  const BasicJson* end() const { return begin() + items_or_none().size(); }
  BasicJson* begin() { return items_or_none().data(); }
  BasicJson* end() { return begin() + items_or_none().size(); }
  const BasicJson& front() const { return at(0); }
  const BasicJson& back() const { return at(size() - 1); }
  BasicJson& front() { return at(0); }
  BasicJson& back() { return at(size() - 1); }
  template <std::integral I>
  const BasicJson& at(I index) const {
    return Item(static_cast<size_t>(index));
  }
  template <std::integral I>
  BasicJson& at(I index) {
    return const_cast<BasicJson&>(Item(static_cast<size_t>(index)));
  }
  template <std::integral I>
  const BasicJson& operator[](I index) const {
    return at(index);
  }
  template <std::integral I>
  BasicJson& operator[](I index) {
    return at(index);
  }
  void push_back(BasicJson item);
  template <class... Args>
  BasicJson& emplace_back(Args&&... args) {
    push_back(BasicJson(std::forward<Args>(args)...));
    return back();
  }
  Array& list();  // of an array, for insert and erase

  // Objects; null has no fields, and becomes an object when one is added.
  const Object& items() const;
  Object& items();
  bool contains(std::string_view key) const { return Find(key) != nullptr; }
  // Null if there is no such field, or this is no object.
  const BasicJson* Find(std::string_view key) const;
  BasicJson* Find(std::string_view key);
  const BasicJson& at(std::string_view key) const;
  BasicJson& at(std::string_view key);
  const BasicJson& at(const char* key) const { return at(std::string_view(key)); }
  BasicJson& at(const char* key) { return at(std::string_view(key)); }
  // Adds a missing field; of a const object, as at().
  BasicJson& operator[](std::string_view key);
  BasicJson& operator[](const char* key) { return (*this)[std::string_view(key)]; }
  const BasicJson& operator[](std::string_view key) const { return at(key); }
  const BasicJson& operator[](const char* key) const { return at(key); }
  // The field, or `otherwise` if there is none.
  template <class T>
  T value(std::string_view key, const T& otherwise) const {
    const BasicJson* field = FieldOf(key);
    return field == nullptr ? otherwise : field->template get<T>();
  }
  std::string value(std::string_view key, const char* otherwise) const {
    return value(key, std::string(otherwise));
  }
  // Whether it was added: an existing field stays.
  bool emplace(std::string_view key, BasicJson value);
  // Whether there was one.
  bool erase(std::string_view key);
  // Adds the fields of the other object, or replaces those that exist.
  void update(const BasicJson& other);

  // On one line, or with `indent` spaces per level. Bytes of strings that are not UTF-8 become
  // U+FFFD.
  std::string dump(int indent = -1, bool ascii_only = false) const;

  friend bool operator==(const BasicJson& a, const BasicJson& b) { return a.Equals(b); }
  template <internal::Arithmetic T>
  friend bool operator==(const BasicJson& a, T b) {
    return a.Equals(b);
  }
  template <internal::Arithmetic T>
  friend auto operator<=>(const BasicJson& a, T b) {
    return a.ToDouble() <=> static_cast<double>(b);
  }
  friend std::ostream& operator<<(std::ostream& out, const BasicJson& value) {
    return value.Print(out);
  }

 private:
  enum class Kind : uint8_t {
    kNull,
    kBoolean,
    kInteger,
    kUnsigned,
    kFloat,
    kString,
    kArray,
    kObject,
    kDiscarded
  };

  const Array& items_or_none() const;
  Array& items_or_none();
  const BasicJson& Item(size_t index) const;
  const BasicJson* FieldOf(std::string_view key) const;  // JsonError if this is no object
  bool Equals(const BasicJson& other) const;
  std::ostream& Print(std::ostream& out) const;
  // The number or boolean; JsonError if it is another kind.
  bool ToBoolean() const;
  double ToDouble() const;
  int64_t ToSigned(int64_t least, int64_t most) const;
  uint64_t ToUnsigned(uint64_t most) const;
  [[noreturn]] void NotA(const char* wanted) const;

  Kind kind_;
  union {
    uint64_t unsigned_ = 0;
    bool boolean_;
    int64_t integer_;
    double float_;
    std::string* string_;
    Array* array_;
    Object* object_;
  };
};

template <bool kSorted>
template <class T>
T BasicJson<kSorted>::get() const {
  if constexpr (std::is_same_v<T, BasicJson>) {
    return *this;
  } else if constexpr (std::is_same_v<T, bool>) {
    return ToBoolean();
  } else if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(ToDouble());
  } else if constexpr (std::is_signed_v<T>) {
    return static_cast<T>(ToSigned(std::numeric_limits<T>::min(), std::numeric_limits<T>::max()));
  } else if constexpr (std::is_unsigned_v<T>) {
    return static_cast<T>(ToUnsigned(std::numeric_limits<T>::max()));
  } else if constexpr (std::is_same_v<T, std::string>) {
    return string();
  } else if constexpr (internal::IsJsonList<T>::value) {
    if (!is_array()) NotA("a list");
    T list;
    for (const BasicJson& item : *array_) list.push_back(item.get<typename T::value_type>());
    return list;
  } else {
    static_assert(internal::IsJsonMap<T>::value);
    T map;
    for (const auto& [key, field] : items())
      map[key] = field.template get<typename T::mapped_type>();
    return map;
  }
}

extern template class BasicJson<true>;
extern template class BasicJson<false>;

// Parses one JSON value. Beyond syntax and UTF-8, refuses duplicate keys, of which nlohmann's
// parser would silently drop one, and nesting deeper than max_depth. InputError names `source` (the
// file) and the byte or key.
Json ParseJson(std::string_view text, std::string_view source, int max_depth = 32);
OrderedJson ParseOrderedJson(std::string_view text, std::string_view source, int max_depth = 32);

// For lines that a crash may have cut short: if the text is not JSON, the result is_discarded() (so
// not is_object()).
Json TryParseJson(std::string_view text);

// The value if it is an integer from `least` to `most`; otherwise an InputError says what it is.
int64_t IntegerOf(const Json& value, int64_t least = std::numeric_limits<int64_t>::min(),
                  int64_t most = std::numeric_limits<int64_t>::max());

// The same for an array, element by element.
std::vector<int64_t> IntegersOf(const Json& array);

// A short printable form of text from a file, in quotes, for error messages.
std::string Quoted(std::string_view text);

}  // namespace lockstep
