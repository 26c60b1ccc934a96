#include "data/chat/methods.h"

#include <algorithm>
#include <map>
#include <set>

#include "data/chat/text.h"
#include "data/utf8.h"

namespace lockstep::data::chat {
namespace {

using Function = Value (*)(const Value& self, const Arguments& arguments);
using Table = std::map<std::string, Function, std::less<>>;

Value Texts(std::vector<std::string> texts, Kind kind = Kind::kList) {
  List list;
  for (std::string& text : texts) list.push_back(Value::String(std::move(text)));
  return Value::Of(kind, std::move(list));
}

// The part of a text that the arguments `start` and `end` select, and the characters before it.
struct Window {
  std::string_view text;
  int64_t before = 0;
  bool empty = false;  // start is behind the end: even the empty text is not in it
};

Window WindowOf(const std::string& text, const std::optional<Value>& start,
                const std::optional<Value>& end) {
  const int64_t length = CountUtf8(text);
  TextWork(text.size());
  const auto bound = [length](const std::optional<Value>& value, int64_t absent) {
    if (!value || value->Is(Kind::kNone)) return absent;
    const int64_t index = RequireInteger(*value, "the bounds of a search");
    return index < 0 ? std::max<int64_t>(0, index < -length ? 0 : index + length) : index;
  };
  const int64_t from = bound(start, 0);
  const int64_t to = std::min(bound(end, length), length);
  if (from > to) return {{}, from, true};
  const size_t begin = Utf8Offset(text, from);
  return {std::string_view(text).substr(begin, Utf8Offset(text, to) - begin), from};
}

// str.find and its like; -1 if there is none.
int64_t Find(const Value& self, const Arguments& arguments, const char* name, bool from_right) {
  const auto bound = arguments.Bind(name, {"sub", "start", "end"}, 1);
  const Window window = WindowOf(self.text(), bound[1], bound[2]);
  const std::string& sub = RequireText(*bound[0], "the text to find");
  const size_t at = from_right ? window.text.rfind(sub) : window.text.find(sub);
  if (window.empty || at == std::string_view::npos) return -1;
  return window.before + CountUtf8(window.text.substr(0, at));
}

Value FoundOrFail(int64_t index) {
  if (index < 0) Fail("substring not found");
  return Value::Int(index);
}

Value StartsOrEnds(const Value& self, const Arguments& arguments, const char* name, bool starts) {
  const auto bound = arguments.Bind(name, {"prefix", "start", "end"}, 1);
  const Window window = WindowOf(self.text(), bound[1], bound[2]);
  const List wanted = bound[0]->Is(Kind::kTuple) ? bound[0]->items() : List{*bound[0]};
  for (const Value& value : wanted) {
    const std::string& text = RequireText(value, "the text to compare with");
    const bool match = starts ? window.text.starts_with(text) : window.text.ends_with(text);
    if (match && !window.empty) return Value::Bool(true);
  }
  return Value::Bool(false);
}

Value Stripped(const Value& self, const Arguments& arguments, const char* name, bool left,
               bool right) {
  const auto set = OptionalText(arguments.Bind(name, {"chars"})[0], "the characters to strip");
  return Value::String(std::string(Strip(self.text(), set, left, right)), self.safe());
}

Value SplitText(const Value& self, const Arguments& arguments, const char* name, bool from_right) {
  const auto bound = arguments.Bind(name, {"sep", "maxsplit"});
  const int64_t most = IntegerOr(bound[1], -1, "maxsplit");
  return Texts(Split(self.text(), OptionalText(bound[0], "the separator"), most, from_right));
}

Value Partition(const Value& self, const Arguments& arguments, bool from_right) {
  const std::string& text = self.text();
  const auto bound = arguments.Bind("partition", {"sep"}, 1);
  const std::string& separator = RequireText(*bound[0], "the separator");
  if (separator.empty()) Fail("empty separator");
  TextWork(text.size());
  const size_t at = from_right ? text.rfind(separator) : text.find(separator);
  if (at == std::string::npos) {
    return from_right ? Texts({"", "", text}, Kind::kTuple) : Texts({text, "", ""}, Kind::kTuple);
  }
  return Texts({text.substr(0, at), separator, text.substr(at + separator.size())}, Kind::kTuple);
}

// Whether the text is not empty and all of its characters satisfy the predicate.
template <class Predicate>
Value All(const Value& self, const Arguments& arguments, Predicate predicate) {
  arguments.Bind("this method", {});
  const std::vector<uint32_t> codes = CodePoints(self.text());
  return Value::Bool(!codes.empty() && std::ranges::all_of(codes, predicate));
}

Value Count(const Value& self, const Arguments& arguments) {
  const auto bound = arguments.Bind("count", {"sub", "start", "end"}, 1);
  const Window window = WindowOf(self.text(), bound[1], bound[2]);
  const std::string& sub = RequireText(*bound[0], "the text to count");
  if (window.empty) return Value::Int(0);
  if (sub.empty()) return Value::Int(CountUtf8(window.text) + 1);
  int64_t count = 0;
  for (size_t at = 0; (at = window.text.find(sub, at)) != std::string_view::npos; ++count) {
    at += sub.size();
  }
  return Value::Int(count);
}

Value JoinTexts(const Value& self, const Arguments& arguments) {
  const List items = Iterate(*arguments.Bind("join", {"iterable"}, 1)[0]);
  std::string joined;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) joined += self.text();
    joined += RequireText(items[i], "each element that join joins");
    RequireTextFits(joined.size());
    TextWork(self.text().size() + items[i].text().size());
  }
  return Value::String(std::move(joined));
}

const Table& TextMethods() {
  static const Table table = {
      {"capitalize",
       [](const Value& self, const Arguments& args) {
         args.Bind("capitalize", {});
         return Value::String(Capitalize(self.text()));
       }},
      {"count", Count},
      {"endswith",
       [](const Value& self, const Arguments& args) {
         return StartsOrEnds(self, args, "endswith", false);
       }},
      {"find", [](const Value& self,
                  const Arguments& args) { return Value::Int(Find(self, args, "find", false)); }},
      {"index",
       [](const Value& self, const Arguments& args) {
         return FoundOrFail(Find(self, args, "index", false));
       }},
      {"isalpha",
       [](const Value& self, const Arguments& args) { return All(self, args, IsLetter); }},
      {"isdecimal",
       [](const Value& self, const Arguments& args) { return All(self, args, IsDecimal); }},
      {"isdigit",
       [](const Value& self, const Arguments& args) { return All(self, args, IsDigit); }},
      {"isspace",
       [](const Value& self, const Arguments& args) { return All(self, args, IsSpace); }},
      {"islower",
       [](const Value& self, const Arguments& args) {
         args.Bind("islower", {});
         return Value::Bool(AllCased(self.text(), IsLower, IsUpper));
       }},
      {"isupper",
       [](const Value& self, const Arguments& args) {
         args.Bind("isupper", {});
         return Value::Bool(AllCased(self.text(), IsUpper, IsLower));
       }},
      {"join", JoinTexts},
      {"lower",
       [](const Value& self, const Arguments& args) {
         args.Bind("lower", {});
         return Value::String(Lower(self.text()));
       }},
      {"lstrip", [](const Value& self,
                    const Arguments& args) { return Stripped(self, args, "lstrip", true, false); }},
      {"partition",
       [](const Value& self, const Arguments& args) { return Partition(self, args, false); }},
      {"removeprefix",
       [](const Value& self, const Arguments& args) {
         const Value prefix = *args.Bind("removeprefix", {"prefix"}, 1)[0];
         const std::string& start = RequireText(prefix, "the prefix");
         const bool has = self.text().starts_with(start);
         return has ? Value::String(self.text().substr(start.size())) : self;
       }},
      {"removesuffix",
       [](const Value& self, const Arguments& args) {
         const Value suffix = *args.Bind("removesuffix", {"suffix"}, 1)[0];
         const std::string& end = RequireText(suffix, "the suffix");
         const bool has = self.text().ends_with(end);
         return has ? Value::String(self.text().substr(0, self.text().size() - end.size())) : self;
       }},
      {"replace",
       [](const Value& self, const Arguments& args) {
         const auto bound = args.Bind("replace", {"old", "new", "count"}, 2);
         return Value::String(Replace(self.text(), RequireText(*bound[0], "the text to replace"),
                                      RequireText(*bound[1], "the text that replaces it"),
                                      IntegerOr(bound[2], -1, "count")));
       }},
      {"rfind", [](const Value& self,
                   const Arguments& args) { return Value::Int(Find(self, args, "rfind", true)); }},
      {"rindex",
       [](const Value& self, const Arguments& args) {
         return FoundOrFail(Find(self, args, "rindex", true));
       }},
      {"rpartition",
       [](const Value& self, const Arguments& args) { return Partition(self, args, true); }},
      {"rsplit", [](const Value& self,
                    const Arguments& args) { return SplitText(self, args, "rsplit", true); }},
      {"rstrip", [](const Value& self,
                    const Arguments& args) { return Stripped(self, args, "rstrip", false, true); }},
      {"split", [](const Value& self,
                   const Arguments& args) { return SplitText(self, args, "split", false); }},
      {"splitlines",
       [](const Value& self, const Arguments& args) {
         const auto bound = args.Bind("splitlines", {"keepends"});
         return Texts(SplitLines(self.text(), TruthyOr(bound[0], false)));
       }},
      {"startswith",
       [](const Value& self, const Arguments& args) {
         return StartsOrEnds(self, args, "startswith", true);
       }},
      {"strip", [](const Value& self,
                   const Arguments& args) { return Stripped(self, args, "strip", true, true); }},
      {"title",
       [](const Value& self, const Arguments& args) {
         args.Bind("title", {});
         return Value::String(Title(self.text()));
       }},
      {"upper",
       [](const Value& self, const Arguments& args) {
         args.Bind("upper", {});
         return Value::String(Upper(self.text()));
       }},
  };
  return table;
}

const Table& ListMethods() {
  static const Table table = {
      {"count",
       [](const Value& self, const Arguments& args) {
         const Value wanted = *args.Bind("count", {"value"}, 1)[0];
         return Value::Int(std::ranges::count_if(
             self.items(), [&](const Value& item) { return Equal(item, wanted); }));
       }},
      {"index",
       [](const Value& self, const Arguments& args) {
         const Value wanted = *args.Bind("index", {"value"}, 1)[0];
         const auto it = std::ranges::find_if(
             self.items(), [&](const Value& item) { return Equal(item, wanted); });
         if (it == self.items().end()) Fail("the value is not in the ", TypeName(self));
         return Value::Int(it - self.items().begin());
       }},
  };
  return table;
}

const Table& DictMethods() {
  static const Table table = {
      {"copy",
       [](const Value& self, const Arguments& args) {
         args.Bind("copy", {});
         return self;
       }},
      {"get",
       [](const Value& self, const Arguments& args) {
         const auto bound = args.Bind("get", {"key", "default"}, 1);
         if (!HashKey(*bound[0])) Fail("unhashable type: '", TypeName(*bound[0]), "'");
         const Value* item = self.dict().Find(*bound[0]);
         return item != nullptr ? *item : bound[1].value_or(Value());
       }},
      {"items",
       [](const Value& self, const Arguments& args) {
         args.Bind("items", {});
         return Value::Of(Kind::kView, ItemPairs(self));
       }},
      {"keys",
       [](const Value& self, const Arguments& args) {
         args.Bind("keys", {});
         return Value::Of(Kind::kView, Iterate(self));
       }},
      {"values",
       [](const Value& self, const Arguments& args) {
         args.Bind("values", {});
         List values;
         for (const auto& [unused, value] : self.dict().items) values.push_back(value);
         return Value::Of(Kind::kView, std::move(values));
       }},
  };
  return table;
}

// nullptr for types without methods.
const Table* MethodsOf(const Value& object) {
  switch (object.kind()) {
    case Kind::kString:
      return &TextMethods();
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
      return &ListMethods();
    case Kind::kDict:
      return &DictMethods();
    default:
      return nullptr;
  }
}

// Methods of Python that are not in the tables.
const std::set<std::string, std::less<>>& OtherMethodsOf(const Value& object) {
  static const std::set<std::string, std::less<>> text = {
      "casefold", "center",    "encode",       "expandtabs", "format",      "format_map",
      "isalnum",  "isascii",   "isidentifier", "isnumeric",  "isprintable", "istitle",
      "ljust",    "maketrans", "rjust",        "swapcase",   "translate",   "zfill"};
  static const std::set<std::string, std::less<>> list = {
      "append", "clear", "copy", "extend", "insert", "pop", "remove", "reverse", "sort"};
  static const std::set<std::string, std::less<>> dict = {"clear",   "fromkeys",   "pop",
                                                          "popitem", "setdefault", "update"};
  static const std::set<std::string, std::less<>> none;
  return object.Is(Kind::kString) ? text
         : object.Is(Kind::kList) ? list
         : object.Is(Kind::kDict) ? dict
                                  : none;
}

}  // namespace

std::optional<Value> FindMethod(const Value& object, const std::string& name) {
  const Table* table = MethodsOf(object);
  if (table == nullptr) return std::nullopt;
  if (table->contains(name)) return Value::BoundMethod(object, name);
  if (!OtherMethodsOf(object).contains(name)) return std::nullopt;
  const char* reason = object.Is(Kind::kString) ? "is not supported" : "would change its object";
  return Value::Undefined(StrCat("the method ", TypeName(object), ".", name, " ", reason));
}

Value CallMethod(const Method& method, const Arguments& arguments) {
  return MethodsOf(method.self)->find(method.name)->second(method.self, arguments);
}

}  // namespace lockstep::data::chat
