// str() and repr().
#include <array>
#include <charconv>
#include <cmath>

#include "data/chat/text.h"
#include "data/chat/value.h"

namespace lockstep::data::chat {
namespace {

void AppendRepr(const Value& value, std::string* out);

void AppendItems(const List& items, std::string* out) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) *out += ", ";
    AppendRepr(items[i], out);
  }
}

void AppendRepr(const Value& value, std::string* out) {
  Work(1);
  RequireTextFits(out->size());
  switch (value.kind()) {
    case Kind::kUndefined:
      *out += "Undefined";
      break;
    case Kind::kString:
      *out += ReprText(value.text());
      break;
    case Kind::kList:
      *out += "[";
      AppendItems(value.items(), out);
      *out += "]";
      break;
    case Kind::kTuple:
      *out += "(";
      AppendItems(value.items(), out);
      *out += value.items().size() == 1 ? ",)" : ")";
      break;
    case Kind::kDict: {
      *out += "{";
      bool first = true;
      for (const auto& [key, item] : value.dict().items) {
        if (!std::exchange(first, false)) *out += ", ";
        AppendRepr(key, out);
        *out += ": ";
        AppendRepr(item, out);
      }
      *out += "}";
      break;
    }
    default:
      *out += Str(value);
  }
}

}  // namespace

std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::array<char, 40> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                 std::chars_format::scientific)
                       .ptr;
  const std::string shortest(buffer.data(), end);  // -d.ddde-xx
  const size_t e = shortest.find('e');
  const int exponent = std::stoi(shortest.substr(e + 1));
  if (exponent < -4 || exponent >= 16) return shortest;
  const bool negative = shortest[0] == '-';
  std::string digits;
  for (const char c : shortest.substr(0, e)) {
    if (c != '-' && c != '.') digits += c;
  }
  if (exponent < 0) {
    digits.insert(0, static_cast<size_t>(-exponent), '0');
  } else if (digits.size() < static_cast<size_t>(exponent) + 2) {
    digits.append(static_cast<size_t>(exponent) + 2 - digits.size(), '0');
  }
  digits.insert(exponent < 0 ? 1 : static_cast<size_t>(exponent) + 1, 1, '.');
  return (negative ? "-" : "") + digits;
}

std::string Repr(const Value& value) {
  std::string out;
  AppendRepr(value, &out);
  return out;
}

std::string Str(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return "";
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return value.boolean() ? "True" : "False";
    case Kind::kInt:
      return std::to_string(value.integer());
    case Kind::kFloat:
      return FloatText(value.number());
    case Kind::kString:
      TextWork(value.text().size());
      return value.text();
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
      return Repr(value);
    case Kind::kMethod:
      Fail("the method '", value.method().name,
           "' cannot be printed; call it: ", value.method().name, "()");
    case Kind::kObject:
      Fail("a ", TypeName(value), " cannot be printed");
    default:
      Fail("a ", TypeName(value), " cannot be printed; make a list of it with |list first");
  }
}

}  // namespace lockstep::data::chat
