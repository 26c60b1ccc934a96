#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "data/chat/builtins.h"
#include "data/chat/operators.h"
#include "data/chat/text.h"

namespace lockstep::data::chat {
namespace {

using Function = Value (*)(const Value& value, const Arguments& arguments);

// The attribute that `path` ("a.b.0", or an index) names.
Value Lookup(Value item, const Value& path) {
  if (!path.Is(Kind::kString)) return GetItem(item, path);
  for (const std::string& part : Split(path.text(), ".", -1)) {
    const bool index = !part.empty() && part.size() < 10 &&
                       std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; });
    item = GetItem(item, index ? Value::Int(std::stoi(part)) : Value::String(part));
  }
  return item;
}

// What sorting and its like compare: the attribute, if one is named, in lower case unless
// case_sensitive.
Value SortKey(const Value& item, const std::optional<Value>& attribute, bool case_sensitive) {
  const bool has = attribute && !attribute->Is(Kind::kNone);
  const Value key = has ? Lookup(item, *attribute) : item;
  return key.Is(Kind::kString) && !case_sensitive ? Value::String(Lower(key.text())) : key;
}

struct Keyed {
  Value key, item;
};

// Sorts by keys; equal ones stay in order, also in reverse.
List Sorted(std::vector<Keyed> keyed, bool reverse) {
  std::ranges::stable_sort(keyed, [reverse](const Keyed& a, const Keyed& b) {
    return reverse ? Less(b.key, a.key) : Less(a.key, b.key);
  });
  List items;
  for (Keyed& entry : keyed) items.push_back(std::move(entry.item));
  return items;
}

Value Sort(const Value& value, const Arguments& arguments) {
  const auto bound = arguments.Bind("sort", {"reverse", "case_sensitive", "attribute"});
  if (bound[2] && bound[2]->Is(Kind::kString) && bound[2]->text().find(',') != std::string::npos) {
    Fail("sort by several attributes is not supported");
  }
  std::vector<Keyed> keyed;
  for (Value& item : Iterate(value)) {
    keyed.push_back({SortKey(item, bound[2], TruthyOr(bound[1], false)), item});
  }
  return Value::Of(Kind::kList, Sorted(std::move(keyed), TruthyOr(bound[0], false)));
}

Value DictSort(const Value& value, const Arguments& arguments) {
  const auto bound = arguments.Bind("dictsort", {"case_sensitive", "by", "reverse"});
  const std::string by = bound[1] ? RequireText(*bound[1], "by") : "key";
  if (by != "key" && by != "value") Fail("dictsort sorts by \"key\" or \"value\" only");
  RequireDefined(value);
  if (!value.Is(Kind::kDict)) Fail("dictsort needs a dict, not '", TypeName(value), "'");
  std::vector<Keyed> keyed;
  for (Value& pair : ItemPairs(value)) {
    const Value& key = pair.items()[by == "key" ? 0 : 1];
    keyed.push_back({SortKey(key, std::nullopt, TruthyOr(bound[0], false)), pair});
  }
  return Value::Of(Kind::kList, Sorted(std::move(keyed), TruthyOr(bound[2], false)));
}

Value Unique(const Value& value, const Arguments& arguments) {
  const auto bound = arguments.Bind("unique", {"case_sensitive", "attribute"});
  std::set<std::string> seen;
  List items;
  for (Value& item : Iterate(value)) {
    const Value key = SortKey(item, bound[1], TruthyOr(bound[0], false));
    const std::optional<std::string> hash = HashKey(key);
    if (!hash) Fail("unhashable type: '", TypeName(key), "'");
    if (seen.insert(*hash).second) items.push_back(item);
  }
  return Value::Of(Kind::kGenerator, std::move(items));
}

Value Extreme(const Value& value, const Arguments& arguments, bool least) {
  const auto bound = arguments.Bind(least ? "min" : "max", {"case_sensitive", "attribute"});
  std::optional<Keyed> best;
  for (Value& item : Iterate(value)) {
    Keyed entry{SortKey(item, bound[1], TruthyOr(bound[0], false)), item};
    const bool better =
        !best || (least ? Less(entry.key, best->key) : Less(best->key, entry.key, ">"));
    if (better) best = std::move(entry);
  }
  return best ? best->item : Value::Undefined("No aggregated item, sequence was empty.");
}

// Also of None, nothing is mapped or selected.
Value Nothing() { return Value::Of(Kind::kGenerator, {}); }

Value Map(const Value& value, const Arguments& arguments) {
  if (!Truthy(value)) return Nothing();
  List mapped;
  if (arguments.positional.empty()) {
    const auto bound = arguments.Bind("map", {"attribute", "default"}, 1);
    for (Value& item : Iterate(value)) {
      Value found = Lookup(item, *bound[0]);
      const bool replaced = bound[1] && found.Is(Kind::kUndefined);
      mapped.push_back(replaced ? *bound[1] : std::move(found));
    }
  } else {
    const std::string name = RequireText(arguments.positional[0], "the filter that map applies");
    RequireFilter(name);
    Arguments rest = arguments;
    rest.positional.erase(rest.positional.begin());
    for (Value& item : Iterate(value)) mapped.push_back(ApplyFilter(name, item, rest));
  }
  return Value::Of(Kind::kGenerator, std::move(mapped));
}

// select, reject, selectattr and rejectattr.
Value Select(const Value& value, Arguments arguments, bool attribute, bool keep) {
  if (!Truthy(value)) return Nothing();
  const auto take = [&] {
    Value first = arguments.positional[0];
    arguments.positional.erase(arguments.positional.begin());
    return first;
  };
  if (attribute && arguments.positional.empty()) Fail("selectattr needs the name of an attribute");
  const Value path = attribute ? take() : Value();
  std::string test;
  if (!arguments.positional.empty()) {
    test = RequireText(take(), "the test that select applies");
    RequireTest(test);
  }
  List selected;
  for (Value& item : Iterate(value)) {
    const Value subject = attribute ? Lookup(item, path) : item;
    const bool passes = test.empty() ? Truthy(subject) : ApplyTest(test, subject, arguments);
    if (passes == keep) selected.push_back(item);
  }
  return Value::Of(Kind::kGenerator, std::move(selected));
}

Value Join(const Value& value, const Arguments& arguments) {
  const auto bound = arguments.Bind("join", {"d", "attribute"});
  const std::string separator = bound[0] ? Str(*bound[0]) : "";
  const bool has = bound[1] && !bound[1]->Is(Kind::kNone);
  std::string joined;
  bool first = true;
  for (const Value& item : Iterate(value)) {
    if (!std::exchange(first, false)) joined += separator;
    joined += Str(has ? Lookup(item, *bound[1]) : item);
    RequireTextFits(joined.size());
    TextWork(separator.size());
  }
  return Value::String(std::move(joined));
}

// int() and float() of texts, as Python reads them.
std::optional<double> ParseFloat(const std::string& given) {
  std::string text(Strip(given, std::nullopt));
  std::erase(text, '_');
  const bool plain = !text.empty() && text.find_first_not_of("+-.0123456789eE") == text.npos;
  const std::string lower = Lower(text.substr(text.find_first_not_of("+-") == 1 ? 1 : 0));
  if (!plain && lower != "inf" && lower != "infinity" && lower != "nan") return std::nullopt;
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

Value ToInt(const Value& value, const Arguments& arguments) {
  const auto bound = arguments.Bind("int", {"default", "base"});
  RequireDefined(value);
  const Value absent = bound[0].value_or(Value::Int(0));
  std::optional<double> number;
  if (value.IsInteger()) return Value::Int(value.integer());
  if (value.Is(Kind::kFloat)) number = value.number();
  if (value.Is(Kind::kString)) {
    if (const auto integer = ParseInt(value.text(), IntegerOr(bound[1], 10, "base"))) {
      return Value::Int(*integer);
    }
    number = ParseFloat(value.text());
  }
  if (!number || !std::isfinite(*number)) return absent;
  if (std::abs(*number) >= 0x1p63) Fail("int: ", FloatText(*number), " does not fit in 64 bits");
  return Value::Int(static_cast<int64_t>(*number));
}

Value ToFloat(const Value& value, const Arguments& arguments) {
  const auto bound = arguments.Bind("float", {"default"});
  RequireDefined(value);
  if (value.IsNumber()) return Value::Float(value.number());
  const auto number = value.Is(Kind::kString) ? ParseFloat(value.text()) : std::nullopt;
  return number ? Value::Float(*number) : bound[0].value_or(Value::Float(0));
}

Value First(const Value& value, const Arguments& arguments) {
  arguments.Bind("first", {});
  const List items = Iterate(value);
  return items.empty() ? Value::Undefined("No first item, sequence was empty.") : items.front();
}

Value Last(const Value& value, const Arguments& arguments) {
  arguments.Bind("last", {});
  if (value.Is(Kind::kGenerator)) Fail("a generator has no last item; make a list of it first");
  const List items = Iterate(value);
  return items.empty() ? Value::Undefined("No last item, sequence was empty.") : items.back();
}

Value Reverse(const Value& value, const Arguments& arguments) {
  arguments.Bind("reverse", {});
  List items = Iterate(value);
  std::ranges::reverse(items);
  if (!value.Is(Kind::kString)) return Value::Of(Kind::kGenerator, std::move(items));
  std::string text;
  for (const Value& item : items) text += item.text();
  return Value::String(std::move(text));
}

Value Sum(const Value& value, const Arguments& arguments) {
  const auto bound = arguments.Bind("sum", {"attribute", "start"});
  Value sum = bound[1].value_or(Value::Int(0));
  if (sum.Is(Kind::kString)) Fail("sum cannot add texts; use |join");
  const bool has = bound[0] && !bound[0]->Is(Kind::kNone);
  for (const Value& item : Iterate(value)) {
    sum = Arithmetic("+", sum, has ? Lookup(item, *bound[0]) : item);
  }
  return sum;
}

Value IndentText(const Value& value, const Arguments& arguments) {
  const auto bound = arguments.Bind("indent", {"width", "first", "blank"});
  std::string indention(4, ' ');
  if (bound[0] && bound[0]->Is(Kind::kString)) {
    indention = bound[0]->text();
  } else if (bound[0]) {
    const auto width = std::max<int64_t>(0, RequireInteger(*bound[0], "the width of indent"));
    RequireTextFits(static_cast<size_t>(width));
    indention.assign(static_cast<size_t>(width), ' ');
  }
  return Value::String(Indent(RequireText(value, "what indent indents"), indention,
                              TruthyOr(bound[1], false), TruthyOr(bound[2], false)));
}

const std::map<std::string, Function, std::less<>>& Filters() {
  static const std::map<std::string, Function, std::less<>> filters = [] {
    std::map<std::string, Function, std::less<>> table = {
        {"abs",
         [](const Value& value, const Arguments& args) {
           args.Bind("abs", {});
           RequireDefined(value);
           if (!value.IsNumber()) Fail("bad operand type for abs: '", TypeName(value), "'");
           return value.number() < 0 ? Negate(value) : Arithmetic("+", value, Value::Int(0));
         }},
        {"capitalize",
         [](const Value& value, const Arguments& args) {
           args.Bind("capitalize", {});
           return Value::String(Capitalize(Str(value)));
         }},
        {"default",
         [](const Value& value, const Arguments& args) {
           const auto bound = args.Bind("default", {"default_value", "boolean"});
           const bool absent =
               value.Is(Kind::kUndefined) || (TruthyOr(bound[1], false) && !Truthy(value));
           return absent ? bound[0].value_or(Value::String("")) : value;
         }},
        {"dictsort", DictSort},
        {"first", First},
        {"float", ToFloat},
        {"indent", IndentText},
        {"int", ToInt},
        {"items",
         [](const Value& value, const Arguments& args) {
           args.Bind("items", {});
           if (value.Is(Kind::kUndefined)) return Value::Of(Kind::kGenerator, {});
           if (!value.Is(Kind::kDict)) Fail("Can only get item pairs from a mapping.");
           return Value::Of(Kind::kGenerator, ItemPairs(value));
         }},
        {"join", Join},
        {"last", Last},
        {"length",
         [](const Value& value, const Arguments& args) {
           args.Bind("length", {});
           return Value::Int(Length(value));
         }},
        {"list",
         [](const Value& value, const Arguments& args) {
           args.Bind("list", {});
           return Value::Of(Kind::kList, Iterate(value));
         }},
        {"lower",
         [](const Value& value, const Arguments& args) {
           args.Bind("lower", {});
           return Value::String(Lower(Str(value)));
         }},
        {"map", Map},
        {"max",
         [](const Value& value, const Arguments& args) { return Extreme(value, args, false); }},
        {"min",
         [](const Value& value, const Arguments& args) { return Extreme(value, args, true); }},
        {"reject", [](const Value& value,
                      const Arguments& args) { return Select(value, args, false, false); }},
        {"rejectattr", [](const Value& value,
                          const Arguments& args) { return Select(value, args, true, false); }},
        {"replace",
         [](const Value& value, const Arguments& args) {
           const auto bound = args.Bind("replace", {"old", "new", "count"}, 2);
           const bool limited = bound[2] && !bound[2]->Is(Kind::kNone);
           return Value::String(Replace(Str(value), Str(*bound[0]), Str(*bound[1]),
                                        limited ? RequireInteger(*bound[2], "count") : -1));
         }},
        {"reverse", Reverse},
        {"safe",
         [](const Value& value, const Arguments& args) {
           args.Bind("safe", {});
           return Value::String(Str(value), /*safe=*/true);
         }},
        {"select", [](const Value& value,
                      const Arguments& args) { return Select(value, args, false, true); }},
        {"selectattr",
         [](const Value& value, const Arguments& args) { return Select(value, args, true, true); }},
        {"sort", Sort},
        {"string",
         [](const Value& value, const Arguments& args) {
           args.Bind("string", {});
           return value.Is(Kind::kString) ? value : Value::String(Str(value));
         }},
        {"sum", Sum},
        {"title",
         [](const Value& value, const Arguments& args) {
           args.Bind("title", {});
           return Value::String(TitleWords(Str(value)));
         }},
        {"tojson", ToJson},
        {"trim",
         [](const Value& value, const Arguments& args) {
           const auto set = OptionalText(args.Bind("trim", {"chars"})[0], "chars");
           return Value::String(std::string(Strip(Str(value), set)));
         }},
        {"unique", Unique},
        {"upper",
         [](const Value& value, const Arguments& args) {
           args.Bind("upper", {});
           return Value::String(Upper(Str(value)));
         }},
    };
    table.emplace("count", table.at("length"));
    table.emplace("d", table.at("default"));
    return table;
  }();
  return filters;
}

}  // namespace

void RequireFilter(std::string_view name) {
  if (Filters().contains(name)) return;
  std::string known;
  for (const auto& [filter, unused] : Filters()) known += (known.empty() ? "" : ", ") + filter;
  Fail("the filter '", name, "' is not supported; there are ", known);
}

Value ApplyFilter(const std::string& name, const Value& value, const Arguments& arguments) {
  return Filters().find(name)->second(value, arguments);
}

}  // namespace lockstep::data::chat
