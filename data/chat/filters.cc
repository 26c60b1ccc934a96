// Filters (value|name) and tests (value is name).
#include <algorithm>
#include <cmath>
#include <set>

#include "data/chat/builtins.h"
#include "data/chat/text.h"

namespace lockstep::data::chat {
namespace {

using C = const Call&;
using enum BuiltinKind;

// The attribute that `path` ("a.b.0", or an index) names; None names the item.
Value Lookup(Value item, const Value& path) {
  if (path.Is(Kind::kNone)) return item;
  if (!path.Is(Kind::kString)) return GetItem(item, path);
  for (const std::string& part : Split(path.text(), ".", -1)) {
    const bool index = !part.empty() && part.size() < 10 &&
                       part.find_first_not_of("0123456789") == std::string::npos;
    item = GetItem(item, index ? Value::Int(std::stoi(part)) : Value::String(part));
  }
  return item;
}

struct Keyed {
  Value key, item;
};

// With what sorting and its like compare: the attribute, in lower case unless case_sensitive.
Keyed WithKey(const Value& item, const Value& attribute, bool case_sensitive) {
  Value key = Lookup(item, attribute);
  if (key.Is(Kind::kString) && !case_sensitive) {
    key = Value::String(Recase(key.text(), Case::kLower));
  }
  return {std::move(key), item};
}

// Sorts by keys; equal ones stay in order, also in reverse.
Value Sorted(std::vector<Keyed> keyed, bool reverse) {
  std::ranges::stable_sort(keyed, [reverse](const Keyed& a, const Keyed& b) {
    return reverse ? Less(b.key, a.key) : Less(a.key, b.key);
  });
  List items;
  for (Keyed& entry : keyed) items.push_back(std::move(entry.item));
  return Value::Of(Kind::kList, std::move(items));
}

Value Sort(C c) {
  const Value& attribute = c.bound[2];
  if (attribute.Is(Kind::kString) && attribute.text().find(',') != std::string::npos) {
    Fail("sort by several attributes is not supported");
  }
  std::vector<Keyed> keyed;
  for (const Value& item : Iterate(c.self)) keyed.push_back(WithKey(item, attribute, c.Flag(1)));
  return Sorted(std::move(keyed), c.Flag(0));
}

Value DictSort(C c) {
  const std::string& by = c.Text(1);
  if (by != "key" && by != "value") Fail("dictsort sorts by \"key\" or \"value\" only");
  RequireDefined(c.self);
  if (!c.self.Is(Kind::kDict)) Fail("dictsort needs a dict, not '", TypeName(c.self), "'");
  std::vector<Keyed> keyed;
  for (const Value& pair : ItemPairs(c.self)) {
    keyed.push_back(WithKey(pair, Value::Int(by == "key" ? 0 : 1), c.Flag(0)));
  }
  return Sorted(std::move(keyed), c.Flag(2));
}

Value Unique(C c) {
  std::set<std::string> seen;
  List items;
  for (const Value& item : Iterate(c.self)) {
    const Value key = WithKey(item, c.bound[1], c.Flag(0)).key;
    if (seen.insert(RequireHashKey(key)).second) items.push_back(item);
  }
  return Value::Of(Kind::kGenerator, std::move(items));
}

Value Extreme(C c, bool least) {
  std::optional<Keyed> best;
  for (const Value& item : Iterate(c.self)) {
    Keyed entry = WithKey(item, c.bound[1], c.Flag(0));
    const bool better =
        !best || (least ? Less(entry.key, best->key) : Less(best->key, entry.key, ">"));
    if (better) best = std::move(entry);
  }
  return best ? best->item : Value::Undefined("No aggregated item, sequence was empty.");
}

// What map and select give for None and any other false value.
Value Nothing() { return Value::Of(Kind::kGenerator, List()); }

// Takes the first argument.
Value TakeFirst(Arguments* arguments) {
  Value first = arguments->positional.front();
  arguments->positional.erase(arguments->positional.begin());
  return first;
}

Value Map(C c) {
  if (!Truthy(c.self)) return Nothing();
  List mapped;
  Arguments rest = c.arguments;
  if (rest.positional.empty()) {
    const auto bound = Bind("map", c.arguments, {"attribute", "default"});
    if (!bound[0]) Fail("map needs the name of a filter, or attribute=");
    for (const Value& item : Iterate(c.self)) {
      Value found = Lookup(item, *bound[0]);
      const bool replaced = bound[1] && found.Is(Kind::kUndefined);
      mapped.push_back(replaced ? *bound[1] : std::move(found));
    }
  } else {
    const std::string name = RequireText(TakeFirst(&rest), "the filter that map applies");
    const Builtin& filter = RequireBuiltin(kFilter, name);
    for (const Value& item : Iterate(c.self)) {
      mapped.push_back(Apply(filter, item, rest, c.rendering));
    }
  }
  return Value::Of(Kind::kGenerator, std::move(mapped));
}

// select, reject, selectattr and rejectattr.
Value Select(C c, bool by_attribute, bool keep) {
  if (!Truthy(c.self)) return Nothing();
  Arguments rest = c.arguments;
  if (by_attribute && rest.positional.empty()) Fail(c.builtin.name, " needs an attribute's name");
  const Value attribute = by_attribute ? TakeFirst(&rest) : Value();
  const Builtin* test = nullptr;
  if (!rest.positional.empty()) {
    const Value name = TakeFirst(&rest);
    test = &RequireBuiltin(kTest, RequireText(name, "the test that select applies"));
  }
  List selected;
  for (const Value& item : Iterate(c.self)) {
    Value subject = Lookup(item, attribute);
    if (test != nullptr) subject = Apply(*test, subject, rest, c.rendering);
    if (Truthy(subject) == keep) selected.push_back(item);
  }
  return Value::Of(Kind::kGenerator, std::move(selected));
}

std::string Join(C c) {
  const std::string separator = Str(c.bound[0]);
  std::string joined;
  bool first = true;
  for (const Value& item : Iterate(c.self)) {
    if (!std::exchange(first, false)) joined += separator;
    joined += Str(Lookup(item, c.bound[1]));
    RequireTextFits(joined.size());
    TextWork(separator.size());
  }
  return joined;
}

Value Sum(C c) {
  Value sum = c.bound[1];
  if (sum.Is(Kind::kString)) Fail("sum cannot add texts; use |join");
  for (const Value& item : Iterate(c.self)) sum = Arithmetic("+", sum, Lookup(item, c.bound[0]));
  return sum;
}

// int() and float() of texts, as Python reads them.
std::optional<double> ParseFloat(const std::string& given) {
  std::string text(Strip(given, std::nullopt));
  std::erase(text, '_');
  const bool plain = !text.empty() && text.find_first_not_of("+-.0123456789eE") == text.npos;
  const bool sign = text.starts_with('+') || text.starts_with('-');
  const std::string name = Recase(text.substr(sign ? 1 : 0), Case::kLower);
  if (!plain && name != "inf" && name != "infinity" && name != "nan") return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  return *end == '\0' ? std::optional(value) : std::nullopt;
}

std::optional<int64_t> ParseInt(const std::string& given, int64_t base) {
  if (base < 2 || base > 36) Fail("int: the base must be from 2 to 36");
  std::string text(Strip(given, std::nullopt));
  if (text.starts_with('_') || text.ends_with('_') || text.find("__") != text.npos) return {};
  std::erase(text, '_');
  const size_t digits = text.find_first_not_of("+-");
  if (digits == text.npos || digits > 1) return std::nullopt;
  char* end = nullptr;
  errno = 0;
  const int64_t value = std::strtoll(text.c_str(), &end, static_cast<int>(base));
  if (*end != '\0') return std::nullopt;
  if (errno == ERANGE) Fail("int: ", text, " does not fit in 64 bits");
  return value;
}

Value ToInt(C c) {
  RequireDefined(c.self);
  std::optional<double> number;
  if (c.self.IsInteger()) return Value::Int(c.self.integer());
  if (c.self.Is(Kind::kFloat)) number = c.self.number();
  if (c.self.Is(Kind::kString)) {
    if (const auto integer = ParseInt(c.self.text(), c.Integer(1))) return Value::Int(*integer);
    number = ParseFloat(c.self.text());
  }
  if (!number || !std::isfinite(*number)) return c.bound[0];
  if (std::abs(*number) >= 0x1p63) Fail("int: ", Str(c.self), " does not fit in 64 bits");
  return Value::Int(static_cast<int64_t>(*number));
}

Value ToFloat(C c) {
  RequireDefined(c.self);
  if (c.self.IsNumber()) return Value::Float(c.self.number());
  const auto number = c.self.Is(Kind::kString) ? ParseFloat(c.self.text()) : std::nullopt;
  if (number) return Value::Float(*number);
  return c.Has(0) ? c.bound[0] : Value::Float(0);
}

Value Abs(C c) {
  RequireDefined(c.self);
  if (!c.self.IsNumber()) Fail("bad operand type for abs: '", TypeName(c.self), "'");
  return c.self.number() < 0 ? Negate(c.self) : Arithmetic("+", c.self, Value::Int(0));
}

Value FirstOrLast(C c, bool first) {
  if (!first && c.self.Is(Kind::kGenerator)) {
    Fail("a generator has no last item; make a list of it with |list first");
  }
  const List items = Iterate(c.self);
  if (!items.empty()) return first ? items.front() : items.back();
  return Value::Undefined(StrCat("No ", c.builtin.name, " item, sequence was empty."));
}

Value Items(C c) {
  if (c.self.Is(Kind::kUndefined)) return Nothing();
  if (!c.self.Is(Kind::kDict)) Fail("Can only get item pairs from a mapping.");
  return Value::Of(Kind::kGenerator, ItemPairs(c.self));
}

Value Reverse(C c) {
  List items = Iterate(c.self);
  std::ranges::reverse(items);
  if (!c.self.Is(Kind::kString)) return Value::Of(Kind::kGenerator, std::move(items));
  std::string text;
  for (const Value& item : items) text += item.text();
  return Value::String(std::move(text));
}

// The text itself, or that many spaces.
std::string Indention(C c, size_t argument) {
  if (c.bound[argument].Is(Kind::kString)) return c.Text(argument);
  const auto width = static_cast<size_t>(std::max<int64_t>(0, c.Integer(argument)));
  RequireTextFits(width);
  return std::string(width, ' ');
}

std::string Indent(C c) {
  const std::string indention = Indention(c, 0);
  std::string out(c.Flag(1) ? indention : "");
  bool first = true;
  for (const std::string& line : SplitLines(RequireText(c.self, "what is indented") + "\n")) {
    if (!std::exchange(first, false)) {
      out += '\n';
      if (c.Flag(2) || !line.empty()) out += indention;
    }
    out += line;
    RequireTextFits(out.size());
  }
  return out;
}

std::string JsonText(C c) {
  JsonFormat format;
  format.ensure_ascii = c.Flag(0);
  format.sort_keys = c.Flag(3);
  if (c.Has(1)) {
    format.indent = Indention(c, 1);
    format.item_separator = std::string(1, ',');
  }
  if (c.Has(2)) {
    const List separators = Iterate(c.bound[2]);
    if (separators.size() != 2) Fail("the separators of tojson must be two texts");
    format.item_separator = RequireText(separators[0], "each separator of tojson");
    format.key_separator = RequireText(separators[1], "each separator of tojson");
  }
  return ToJson(c.self, format);
}

bool HasRest(const Value& value, const Value& divisor, int64_t rest) {
  return Equal(Arithmetic("%", value, divisor), Value::Int(rest));
}

bool IsIterable(const Value& value) {
  return value.IsSequence() || value.Is(Kind::kString) || value.Is(Kind::kDict) ||
         value.Is(Kind::kUndefined);
}

bool IsCallable(const Value& value) {
  return value.Is(Kind::kFunction) || value.Is(Kind::kUndefined) ||
         (value.Is(Kind::kObject) && value.object()->callable());
}

// The same object: exact for what templates compare in this way, None, true and false.
bool IsSame(const Value& a, const Value& b) {
  if (a.kind() != b.kind()) return false;
  if (a.Is(Kind::kNone) || a.Is(Kind::kBool) || a.Is(Kind::kObject)) return Equal(a, b);
  Fail("the test 'sameas' is supported for none, true, false and namespaces only");
}

}  // namespace

std::vector<Builtin> FilterTable() {
  return {
      {kFilter, "abs", "", Abs},
      {kFilter, "capitalize", "", [](C c) { return Recase(Str(c.self), Case::kCapitalize); }},
      {kFilter, "default d", "default_value= boolean=false",
       [](C c) {
         const bool absent = c.self.Is(Kind::kUndefined) || (c.Flag(1) && !Truthy(c.self));
         return absent ? c.bound[0] : c.self;
       }},
      {kFilter, "dictsort", "case_sensitive=false by=key reverse=false", DictSort},
      {kFilter, "first", "", [](C c) { return FirstOrLast(c, true); }},
      {kFilter, "float", "default=none", ToFloat},
      {kFilter, "indent", "width=4 first=false blank=false", Indent},
      {kFilter, "int", "default=0 base=10", ToInt},
      {kFilter, "items", "", Items},
      {kFilter, "join", "d= attribute=none", Join},
      {kFilter, "last", "", [](C c) { return FirstOrLast(c, false); }},
      {kFilter, "length count", "", [](C c) { return Length(c.self); }},
      {kFilter, "list", "", [](C c) { return Value::Of(Kind::kList, Iterate(c.self)); }},
      {kFilter, "lower", "", [](C c) { return Recase(Str(c.self), Case::kLower); }},
      {kFilter, "map", "*", Map},
      {kFilter, "max", "case_sensitive=false attribute=none",
       [](C c) { return Extreme(c, false); }},
      {kFilter, "min", "case_sensitive=false attribute=none", [](C c) { return Extreme(c, true); }},
      {kFilter, "reject", "*", [](C c) { return Select(c, false, false); }},
      {kFilter, "rejectattr", "*", [](C c) { return Select(c, true, false); }},
      {kFilter, "replace", "old new count=none",
       [](C c) {
         return Replace(Str(c.self), Str(c.bound[0]), Str(c.bound[1]),
                        c.Has(2) ? c.Integer(2) : -1);
       }},
      {kFilter, "reverse", "", Reverse},
      {kFilter, "safe", "", [](C c) { return Value::String(Str(c.self), /*safe=*/true); }},
      {kFilter, "select", "*", [](C c) { return Select(c, false, true); }},
      {kFilter, "selectattr", "*", [](C c) { return Select(c, true, true); }},
      {kFilter, "sort", "reverse=false case_sensitive=false attribute=none", Sort},
      {kFilter, "string", "",
       [](C c) { return c.self.Is(Kind::kString) ? c.self : Value::String(Str(c.self)); }},
      {kFilter, "sum", "attribute=none start=0", Sum},
      {kFilter, "title", "", [](C c) { return Recase(Str(c.self), Case::kTitleWords); }},
      {kFilter, "tojson", "ensure_ascii=false indent=none separators=none sort_keys=false",
       JsonText},
      {kFilter, "trim", "chars=none",
       [](C c) { return std::string(Strip(Str(c.self), c.OptionalText(0))); }},
      {kFilter, "unique", "case_sensitive=false attribute=none", Unique},
      {kFilter, "upper", "", [](C c) { return Recase(Str(c.self), Case::kUpper); }},
  };
}

std::vector<Builtin> TestTable() {
  return {
      {kTest, "boolean", "", [](C c) { return c.self.Is(Kind::kBool); }},
      {kTest, "callable", "", [](C c) { return IsCallable(c.self); }},
      {kTest, "defined", "", [](C c) { return !c.self.Is(Kind::kUndefined); }},
      {kTest, "divisibleby", "num", [](C c) { return HasRest(c.self, c.bound[0], 0); }},
      {kTest, "even", "", [](C c) { return HasRest(c.self, Value::Int(2), 0); }},
      {kTest, "false", "", [](C c) { return c.self.Is(Kind::kBool) && !Truthy(c.self); }},
      {kTest, "float", "", [](C c) { return c.self.Is(Kind::kFloat); }},
      {kTest, "in", "seq", [](C c) { return Holds("in", c.self, c.bound[0]); }},
      {kTest, "integer", "", [](C c) { return c.self.Is(Kind::kInt); }},
      {kTest, "iterable", "", [](C c) { return IsIterable(c.self); }},
      {kTest, "lower", "", [](C c) { return IsCased(Str(c.self), false); }},
      {kTest, "mapping", "", [](C c) { return c.self.Is(Kind::kDict); }},
      {kTest, "none", "", [](C c) { return c.self.Is(Kind::kNone); }},
      {kTest, "number", "", [](C c) { return c.self.IsNumber(); }},
      {kTest, "odd", "", [](C c) { return HasRest(c.self, Value::Int(2), 1); }},
      {kTest, "sameas", "other", [](C c) { return IsSame(c.self, c.bound[0]); }},
      {kTest, "sequence", "",
       [](C c) {
         return IsIterable(c.self) && !c.self.Is(Kind::kView) && !c.self.Is(Kind::kGenerator);
       }},
      {kTest, "string", "", [](C c) { return c.self.Is(Kind::kString); }},
      {kTest, "true", "", [](C c) { return c.self.Is(Kind::kBool) && Truthy(c.self); }},
      {kTest, "undefined", "", [](C c) { return c.self.Is(Kind::kUndefined); }},
      {kTest, "upper", "", [](C c) { return IsCased(Str(c.self), true); }},
      {kTest, "eq == equalto", "b", [](C c) { return Holds("==", c.self, c.bound[0]); }},
      {kTest, "ne !=", "b", [](C c) { return Holds("!=", c.self, c.bound[0]); }},
      {kTest, "lt < lessthan", "b", [](C c) { return Holds("<", c.self, c.bound[0]); }},
      {kTest, "le <=", "b", [](C c) { return Holds("<=", c.self, c.bound[0]); }},
      {kTest, "gt > greaterthan", "b", [](C c) { return Holds(">", c.self, c.bound[0]); }},
      {kTest, "ge >=", "b", [](C c) { return Holds(">=", c.self, c.bound[0]); }},
  };
}

}  // namespace lockstep::data::chat
