// The methods of texts, lists, tuples, ranges and dicts.
#include <algorithm>

#include "data/chat/builtins.h"
#include "data/chat/text.h"
#include "data/utf8.h"

namespace lockstep::data::chat {
namespace {

using enum BuiltinKind;

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

Window WindowOf(const Call& c) {
  const std::string& text = c.self.text();
  const int64_t length = Length(c.self);
  const auto bound = [&](size_t i, int64_t absent) {
    if (!c.Has(i)) return absent;
    const int64_t index = c.Integer(i);
    return index < 0 ? std::max(index, -length) + length : index;
  };
  const int64_t from = bound(1, 0);
  const int64_t to = std::min(bound(2, length), length);
  if (from > to) return {{}, from, true};
  const size_t begin = Utf8Offset(text, from);
  return {std::string_view(text).substr(begin, Utf8Offset(text, to) - begin), from};
}

// str.find and its like; -1 if there is none, or an error if it is `required`.
int64_t Find(const Call& c, bool from_right, bool required = false) {
  const Window window = WindowOf(c);
  const std::string& sub = c.Text(0);
  const size_t at = from_right ? window.text.rfind(sub) : window.text.find(sub);
  const bool found = !window.empty && at != std::string_view::npos;
  if (!found && required) Fail("substring not found");
  return found ? window.before + CountUtf8(window.text.substr(0, at)) : -1;
}

bool StartsOrEnds(const Call& c, bool starts) {
  const Window window = WindowOf(c);
  const List wanted = c.bound[0].Is(Kind::kTuple) ? c.bound[0].items() : List{c.bound[0]};
  return std::ranges::any_of(wanted, [&](const Value& value) {
    const std::string& text = RequireText(value, c.Name(0));
    return !window.empty && (starts ? window.text.starts_with(text) : window.text.ends_with(text));
  });
}

Value Stripped(const Call& c, bool left, bool right) {
  const std::string_view text = Strip(c.self.text(), c.OptionalText(0), left, right);
  return Value::String(std::string(text), c.self.safe());
}

Value Partition(const Call& c, bool from_right) {
  const std::string& text = c.self.text();
  const std::string& separator = c.Text(0);
  if (separator.empty()) Fail("empty separator");
  TextWork(text.size());
  const size_t at = from_right ? text.rfind(separator) : text.find(separator);
  if (at == text.npos && from_right) return Texts({"", "", text}, Kind::kTuple);
  if (at == text.npos) return Texts({text, "", ""}, Kind::kTuple);
  return Texts({text.substr(0, at), separator, text.substr(at + separator.size())}, Kind::kTuple);
}

// Whether the text is not empty and all of its characters satisfy the predicate.
bool All(const Call& c, bool (*predicate)(uint32_t)) {
  const std::vector<uint32_t> codes = CodePoints(c.self.text());
  return !codes.empty() && std::ranges::all_of(codes, predicate);
}

int64_t CountText(const Call& c) {
  const Window window = WindowOf(c);
  const std::string& sub = c.Text(0);
  if (window.empty) return 0;
  if (sub.empty()) return CountUtf8(window.text) + 1;
  int64_t count = 0;
  for (size_t at = 0; (at = window.text.find(sub, at)) != window.text.npos; ++count) {
    at += sub.size();
  }
  return count;
}

std::string JoinTexts(const Call& c) {
  std::string joined;
  bool first = true;
  for (const Value& item : Iterate(c.bound[0])) {
    if (!std::exchange(first, false)) joined += c.self.text();
    joined += RequireText(item, "each element that join joins");
    RequireTextFits(joined.size());
    TextWork(c.self.text().size() + item.text().size());
  }
  return joined;
}

int64_t IndexInList(const Call& c) {
  const List& items = c.self.items();
  const auto it = std::ranges::find_if(items, [&](const auto& i) { return Equal(i, c.bound[0]); });
  if (it == items.end()) Fail("the value is not in the ", TypeName(c.self));
  return it - items.begin();
}

Value GetFromDict(const Call& c) {
  const Value* item = c.self.dict().Find(RequireHashKey(c.bound[0]));
  return item != nullptr ? *item : c.bound[1];
}

Value ValuesOfDict(const Call& c) {
  List values;
  for (const auto& [unused, value] : c.self.dict().items) values.push_back(value);
  return Value::Of(Kind::kView, std::move(values));
}

// Methods of Python that are not in the table.
constexpr std::string_view kOtherOfText[] = {
    "casefold", "center",    "encode",       "expandtabs", "format",      "format_map",
    "isalnum",  "isascii",   "isidentifier", "isnumeric",  "isprintable", "istitle",
    "ljust",    "maketrans", "rjust",        "swapcase",   "translate",   "zfill"};
constexpr std::string_view kOtherOfList[] = {"append", "clear",  "copy",    "extend", "insert",
                                             "pop",    "remove", "reverse", "sort"};
constexpr std::string_view kOtherOfDict[] = {"clear",   "fromkeys",   "pop",
                                             "popitem", "setdefault", "update"};

}  // namespace

std::vector<Builtin> MethodTable() {
  using C = const Call&;
  constexpr const char* kWindow = "sub start=none end=none";
  return {
      {kTextMethod, "capitalize", "", [](C c) { return Recase(c.self.text(), Case::kCapitalize); }},
      {kTextMethod, "count", kWindow, CountText},
      {kTextMethod, "endswith", kWindow, [](C c) { return StartsOrEnds(c, false); }},
      {kTextMethod, "find", kWindow, [](C c) { return Find(c, false); }},
      {kTextMethod, "index", kWindow, [](C c) { return Find(c, false, true); }},
      {kTextMethod, "isalpha", "", [](C c) { return All(c, IsLetter); }},
      {kTextMethod, "isdecimal", "", [](C c) { return All(c, IsDecimal); }},
      {kTextMethod, "isdigit", "", [](C c) { return All(c, IsDigit); }},
      {kTextMethod, "islower", "", [](C c) { return IsCased(c.self.text(), false); }},
      {kTextMethod, "isspace", "", [](C c) { return All(c, IsSpace); }},
      {kTextMethod, "isupper", "", [](C c) { return IsCased(c.self.text(), true); }},
      {kTextMethod, "join", "iterable", JoinTexts},
      {kTextMethod, "lower", "", [](C c) { return Recase(c.self.text(), Case::kLower); }},
      {kTextMethod, "lstrip", "chars=none", [](C c) { return Stripped(c, true, false); }},
      {kTextMethod, "partition", "sep", [](C c) { return Partition(c, false); }},
      {kTextMethod, "removeprefix", "prefix",
       [](C c) {
         const bool has = c.self.text().starts_with(c.Text(0));
         return has ? Value::String(c.self.text().substr(c.Text(0).size())) : c.self;
       }},
      {kTextMethod, "removesuffix", "suffix",
       [](C c) {
         const size_t kept = c.self.text().size() - c.Text(0).size();
         const bool has = c.self.text().ends_with(c.Text(0));
         return has ? Value::String(c.self.text().substr(0, kept)) : c.self;
       }},
      {kTextMethod, "replace", "old new count=-1",
       [](C c) { return Replace(c.self.text(), c.Text(0), c.Text(1), c.Integer(2)); }},
      {kTextMethod, "rfind", kWindow, [](C c) { return Find(c, true); }},
      {kTextMethod, "rindex", kWindow, [](C c) { return Find(c, true, true); }},
      {kTextMethod, "rpartition", "sep", [](C c) { return Partition(c, true); }},
      {kTextMethod, "rsplit", "sep=none maxsplit=-1",
       [](C c) { return Texts(Split(c.self.text(), c.OptionalText(0), c.Integer(1), true)); }},
      {kTextMethod, "rstrip", "chars=none", [](C c) { return Stripped(c, false, true); }},
      {kTextMethod, "split", "sep=none maxsplit=-1",
       [](C c) { return Texts(Split(c.self.text(), c.OptionalText(0), c.Integer(1))); }},
      {kTextMethod, "splitlines", "keepends=false",
       [](C c) { return Texts(SplitLines(c.self.text(), c.Flag(0))); }},
      {kTextMethod, "startswith", kWindow, [](C c) { return StartsOrEnds(c, true); }},
      {kTextMethod, "strip", "chars=none", [](C c) { return Stripped(c, true, true); }},
      {kTextMethod, "title", "", [](C c) { return Recase(c.self.text(), Case::kTitle); }},
      {kTextMethod, "upper", "", [](C c) { return Recase(c.self.text(), Case::kUpper); }},
      {kListMethod, "count", "value",
       [](C c) {
         return static_cast<int64_t>(std::ranges::count_if(
             c.self.items(), [&](const Value& item) { return Equal(item, c.bound[0]); }));
       }},
      {kListMethod, "index", "value", IndexInList},
      {kDictMethod, "copy", "", [](C c) { return c.self; }},
      {kDictMethod, "get", "key default=none", GetFromDict},
      {kDictMethod, "items", "", [](C c) { return Value::Of(Kind::kView, ItemPairs(c.self)); }},
      {kDictMethod, "keys", "", [](C c) { return Value::Of(Kind::kView, Iterate(c.self)); }},
      {kDictMethod, "values", "", ValuesOfDict},
  };
}

std::optional<Value> FindMethod(const Value& object, const std::string& name) {
  const bool text = object.Is(Kind::kString), dict = object.Is(Kind::kDict);
  if (!object.IsIndexed() && !dict) return std::nullopt;
  const Builtin* method = FindBuiltin(text ? kTextMethod : dict ? kDictMethod : kListMethod, name);
  if (method != nullptr) return Value::Of(method, object);
  const auto other = [&](const auto& names) {
    return std::ranges::find(names, name) != std::end(names);
  };
  const bool known = text   ? other(kOtherOfText)
                     : dict ? other(kOtherOfDict)
                            : object.Is(Kind::kList) && other(kOtherOfList);
  if (!known) return std::nullopt;
  return Value::Undefined(StrCat("the method ", TypeName(object), ".", name,
                                 text ? " is not supported" : " would change its object"));
}

}  // namespace lockstep::data::chat
