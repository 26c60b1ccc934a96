// Arithmetic, attributes, elements and slices.
#include <algorithm>
#include <cmath>

#include "data/chat/builtins.h"
#include "data/chat/text.h"
#include "data/utf8.h"

namespace lockstep::data::chat {
namespace {

[[noreturn]] void FailOverflow() { Fail("the result is an integer of more than 64 bits"); }

int64_t FloorDivide(int64_t a, int64_t b) {
  if (a == INT64_MIN && b == -1) FailOverflow();
  const int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

double FloorModulo(double a, double b) {
  const double rest = std::fmod(a, b);
  if (rest == 0) return std::copysign(0.0, b);
  return (rest < 0) != (b < 0) ? rest + b : rest;
}

int64_t Power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  while (exponent > 0) {
    if (exponent % 2 == 1 && __builtin_mul_overflow(result, base, &result)) FailOverflow();
    exponent /= 2;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) FailOverflow();
  }
  return result;
}

int64_t Integers(std::string_view symbol, int64_t a, int64_t b) {
  int64_t result = 0;
  const bool overflow = symbol == "+"   ? __builtin_add_overflow(a, b, &result)
                        : symbol == "-" ? __builtin_sub_overflow(a, b, &result)
                        : symbol == "*" ? __builtin_mul_overflow(a, b, &result)
                                        : false;
  if (overflow) FailOverflow();
  if (symbol == "//") return FloorDivide(a, b);
  if (symbol == "%") return b == -1 ? 0 : a - FloorDivide(a, b) * b;
  return symbol == "**" ? Power(a, b) : result;
}

double Floats(std::string_view symbol, double a, double b) {
  if (symbol == "+") return a + b;
  if (symbol == "-") return a - b;
  if (symbol == "*") return a * b;
  if (symbol == "/") return a / b;
  if (symbol == "%") return FloorModulo(a, b);
  if (symbol == "//") return std::round((a - FloorModulo(a, b)) / b);
  if (a == 0 && b < 0) Fail("0 cannot be raised to a negative power");
  if (a < 0 && b != std::floor(b)) Fail("the result of ** is a complex number");
  const double power = std::pow(a, b);
  if (std::isinf(power) && std::isfinite(a) && std::isfinite(b)) {
    Fail("the result of ** is too large");
  }
  return power;
}

Value Numbers(std::string_view symbol, const Value& a, const Value& b) {
  const bool divides = symbol == "/" || symbol == "//" || symbol == "%";
  if (divides && b.number() == 0) Fail("division by zero");
  const bool integers = a.IsInteger() && b.IsInteger() && symbol != "/";
  if (integers && !(symbol == "**" && b.integer() < 0)) {
    return Value::Int(Integers(symbol, a.integer(), b.integer()));
  }
  return Value::Float(Floats(symbol, a.number(), b.number()));
}

Value Joined(const Value& a, const Value& b) {
  if (a.Is(Kind::kString)) {
    if (a.safe() != b.safe() &&
        (a.safe() ? b : a).text().find_first_of("<>&'\"") != a.text().npos) {
      Fail("with + and a text from the filter safe, Jinja escapes the other text for HTML; use ~");
    }
    RequireTextFits(a.text().size() + b.text().size());
    return Value::String(a.text() + b.text(), a.safe() || b.safe());
  }
  List items = a.items();
  items.insert(items.end(), b.items().begin(), b.items().end());
  return Value::Of(a.kind(), std::move(items));
}

Value Repeated(const Value& a, int64_t times) {
  const bool is_text = a.Is(Kind::kString);
  const size_t size = is_text ? a.text().size() : a.items().size();
  const size_t count = size == 0 ? 0 : static_cast<size_t>(std::max<int64_t>(times, 0));
  if (count > 0) RequireTextFits(count > SIZE_MAX / size / 2 ? SIZE_MAX : count * size);
  std::string text;
  List items;
  if (!is_text) Work(count * size);
  for (size_t i = 0; i < count; ++i) {
    if (is_text) {
      text += a.text();
    } else {
      items.insert(items.end(), a.items().begin(), a.items().end());
    }
  }
  return is_text ? Value::String(std::move(text), a.safe()) : Value::Of(a.kind(), std::move(items));
}

bool Repeats(const Value& value) { return value.IsIndexed() && !value.Is(Kind::kRange); }

// "'dict object' has no attribute 'x'", as Jinja says it.
Value Missing(const Value& object, const Value& key) {
  const std::string type = object.Is(Kind::kNone) ? "None" : TypeName(object) + " object";
  if (key.Is(Kind::kString)) {
    return Value::Undefined("'" + type + "' has no attribute " + ReprText(key.text()));
  }
  const bool scalar = key.kind() < Kind::kDict;
  return Value::Undefined(type + " has no element " + (scalar ? Str(key) : TypeName(key)));
}

std::optional<Value> FindAttribute(const Value& object, const std::string& name) {
  return object.Is(Kind::kObject) ? object.object()->Attribute(name) : FindMethod(object, name);
}

}  // namespace

Value Arithmetic(std::string_view symbol, const Value& a, const Value& b) {
  if (a.IsNumber() && b.IsNumber()) return Numbers(symbol, a, b);
  if (symbol == "+" && a.kind() == b.kind() && Repeats(a)) return Joined(a, b);
  if (symbol == "*" && Repeats(a) && b.IsInteger()) return Repeated(a, b.integer());
  if (symbol == "*" && a.IsInteger() && Repeats(b)) return Repeated(b, a.integer());
  RequireDefined(a);
  RequireDefined(b);
  if (symbol == "%" && a.Is(Kind::kString)) {
    Fail("formatting with 'text' % values is not supported; use ~");
  }
  Fail("unsupported operand types for ", symbol, ": '", TypeName(a), "' and '", TypeName(b), "'");
}

Value Negate(const Value& value) {
  RequireDefined(value);
  if (value.Is(Kind::kFloat)) return Value::Float(-value.number());
  if (!value.IsInteger()) Fail("bad operand type for unary -: '", TypeName(value), "'");
  return Value::Int(Integers("-", 0, value.integer()));
}

Value GetAttribute(const Value& object, const std::string& name) {
  RequireDefined(object);
  if (std::optional<Value> attribute = FindAttribute(object, name)) return *std::move(attribute);
  if (object.Is(Kind::kDict)) {
    if (const Value* item = object.dict().Find("s" + name)) return *item;
  }
  return Missing(object, Value::String(name));
}

Value GetItem(const Value& object, const Value& key) {
  RequireDefined(object);
  if (object.Is(Kind::kDict)) {
    const std::optional<std::string> hash = HashKey(key);
    if (const Value* item = hash ? object.dict().Find(*hash) : nullptr) return *item;
  } else if (key.IsInteger()) {
    const int64_t length = object.IsIndexed() ? Length(object) : 0;
    const int64_t index = key.integer() < 0 ? key.integer() + length : key.integer();
    if (index < 0 || index >= length) return Missing(object, key);
    if (!object.Is(Kind::kString)) return object.items()[static_cast<size_t>(index)];
    return GetSlice(object, Value::Int(index), Value::Int(index + 1), Value());
  }
  if (!key.Is(Kind::kString)) return Missing(object, key);
  std::optional<Value> attribute = FindAttribute(object, key.text());
  return attribute ? *std::move(attribute) : Missing(object, key);
}

Value GetSlice(const Value& object, const Value& begin, const Value& end, const Value& step) {
  RequireDefined(object);
  if (!object.IsIndexed()) Fail("'", TypeName(object), "' object cannot be sliced");
  const int64_t stride = step.Is(Kind::kNone) ? 1 : RequireInteger(step, "the step of a slice");
  if (stride == 0) Fail("the step of a slice cannot be zero");
  const bool is_text = object.Is(Kind::kString), forward = stride > 0;
  const std::vector<uint32_t> codes = is_text ? CodePoints(object.text()) : std::vector<uint32_t>();
  const int64_t length = is_text ? static_cast<int64_t>(codes.size()) : Length(object);
  const auto bound = [&](const Value& value, int64_t absent) {
    if (value.Is(Kind::kNone)) return absent;
    int64_t index = RequireInteger(value, "the bounds of a slice");
    if (index < 0) index = index < -length ? -1 : index + length;
    const int64_t least = forward ? 0 : -1;
    return std::clamp(index, least, least + length);
  };
  const int64_t from = bound(begin, forward ? 0 : length - 1);
  const int64_t to = bound(end, forward ? length : -1);
  std::string text;
  List items;
  for (int64_t i = from; forward ? i < to : i > to;) {
    if (is_text) {
      AppendUtf8(codes[static_cast<size_t>(i)], &text);
    } else {
      items.push_back(object.items()[static_cast<size_t>(i)]);
    }
    if (__builtin_add_overflow(i, stride, &i)) break;
  }
  return is_text ? Value::String(std::move(text), object.safe())
                 : Value::Of(object.kind(), std::move(items));
}

}  // namespace lockstep::data::chat
