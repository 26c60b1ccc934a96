// Truth, equality and order of values.
#include <algorithm>

#include "data/chat/value.h"

namespace lockstep::data::chat {
namespace {

bool EqualItems(const List& a, const List& b) {
  return a.size() == b.size() && std::ranges::equal(a, b, Equal);
}

bool EqualDicts(const Dict& a, const Dict& b) {
  return a.items.size() == b.items.size() && std::ranges::all_of(a.items, [&](const auto& item) {
           const Value* other = b.Find(item.first);
           return other != nullptr && Equal(item.second, *other);
         });
}

}  // namespace

bool Truthy(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return value.integer() != 0;
    case Kind::kFloat:
      return value.number() != 0;
    case Kind::kString:
      return !value.text().empty();
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
    case Kind::kView:
      return !value.items().empty();
    case Kind::kDict:
      return !value.dict().items.empty();
    default:
      return true;
  }
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
      return EqualItems(a.items(), b.items());
    case Kind::kView:
    case Kind::kGenerator:
      return &a.items() == &b.items();
    case Kind::kDict:
      return EqualDicts(a.dict(), b.dict());
    case Kind::kMethod:
      return a.method().name == b.method().name && Equal(a.method().self, b.method().self);
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

bool LessOrEqual(const Value& a, const Value& b, const char* symbol) {
  return Less(a, b, symbol) || Equal(a, b);
}

bool Contains(const Value& container, const Value& element) {
  if (container.Is(Kind::kString)) {
    if (!element.Is(Kind::kString)) {
      Fail("'in' a text requires a text on its left, not '", TypeName(element), "'");
    }
    TextWork(container.text().size());
    return container.text().find(element.text()) != std::string::npos;
  }
  if (container.Is(Kind::kDict)) {
    if (!HashKey(element)) Fail("unhashable type: '", TypeName(element), "'");
    return container.dict().Find(element) != nullptr;
  }
  if (!container.IsSequence() && !container.Is(Kind::kUndefined)) {
    Fail("argument of type '", TypeName(container), "' is not iterable");
  }
  const List items = Iterate(container);
  return std::ranges::any_of(items, [&](const Value& item) { return Equal(item, element); });
}

}  // namespace lockstep::data::chat
