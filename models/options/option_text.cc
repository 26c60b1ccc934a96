#include "models/options/option_text.h"

#include <charconv>
#include <cmath>
#include <system_error>

#include "core/error.h"
#include "data/utf8.h"
#include "models/options/suggest.h"

namespace lockstep::models {
namespace {

// The shortest digits that read back equal.
std::string Digits(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof(buffer), value);
  std::string text(buffer, end);
  // "6e-04" reads better as "6e-4".
  const size_t zero = text.find("e-0");
  if (zero != std::string::npos) text.erase(zero + 2, 1);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (c == '\n') {
      quoted += "\\n";
    } else if (c == '\t') {
      quoted += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      constexpr char kHex[] = "0123456789abcdef";
      quoted += "\\u00";
      quoted += kHex[byte >> 4];
      quoted += kHex[byte & 15];
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

// All of `text` as a number; std::errc::invalid_argument if anything is left over.
template <class T>
std::errc ParseAll(std::string_view text, T& value) {
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::invalid_argument || end != text.data() + text.size())
    return std::errc::invalid_argument;
  return error;
}

// 1e3 or 1000.0 is an integer to most people: say how to write it.
bool AsInteger(double value, int64_t& integer) {
  constexpr double kExact = 9007199254740992.0;  // 2^53
  if (!(std::abs(value) <= kExact) || value != std::floor(value)) return false;
  integer = static_cast<int64_t>(value);
  return true;
}

int64_t ParseInteger(const std::string& text, const OptionValue& like, const std::string& where) {
  int64_t integer = 0;
  const std::errc error = ParseAll(text, integer);
  if (error == std::errc()) return integer;
  if (error == std::errc::result_out_of_range)
    throw InputError(StrCat(where, ": does not fit into 64 bits"));
  double number = 0;
  const bool whole = ParseAll(text, number) == std::errc() && AsInteger(number, integer);
  throw InputError(StrCat(where, ": expected an integer", whole ? ": write " : " such as ",
                          whole ? Bare(integer) : Bare(like)));
}

double ParseNumber(const std::string& text, const OptionValue& like, const std::string& where) {
  double number = 0;
  const std::errc error = ParseAll(text, number);
  if (error == std::errc::result_out_of_range)
    throw InputError(StrCat(where, ": is too large or too small for a 64-bit number"));
  if (error != std::errc())
    throw InputError(StrCat(where, ": expected a number such as ", Bare(like)));
  return number;
}

// What the file says, for errors.
std::string Description(const TomlEntry& entry, OptionValue* value, std::string* type) {
  if (const auto* other = std::get_if<TomlOther>(&entry.value)) {
    *type = other->type;
    return entry.key;
  }
  std::visit(
      [&](const auto& held) {
        if constexpr (std::is_constructible_v<OptionValue, decltype(held)>) *value = held;
      },
      entry.value);
  *type = TypeWithArticle(*value);
  return AsToml(entry.key, *value);
}

}  // namespace

std::string TypeWithArticle(const OptionValue& value) {
  constexpr const char* kNames[] = {"true or false", "an integer", "a number", "a string",
                                    "a list of strings"};
  return kNames[value.index()];
}

std::string ToToml(const OptionValue& value) {
  if (const auto* boolean = std::get_if<bool>(&value)) return *boolean ? "true" : "false";
  if (const auto* integer = std::get_if<int64_t>(&value)) return std::to_string(*integer);
  if (const auto* number = std::get_if<double>(&value)) return Digits(*number);
  if (const auto* text = std::get_if<std::string>(&value)) return Quoted(*text);
  std::string list;
  for (const std::string& text : std::get<TextList>(value)) {
    list += StrCat(list.empty() ? "" : ", ", Quoted(text));
  }
  return StrCat("[", list, "]");
}

std::string AsToml(std::string_view key, const OptionValue& value) {
  return StrCat(key, " = ", ToToml(value));
}

std::string Bare(const OptionValue& value) {
  if (const auto* list = std::get_if<TextList>(&value)) return list->empty() ? "" : list->front();
  const auto* text = std::get_if<std::string>(&value);
  return text ? *text : ToToml(value);
}

OptionValue FitToml(const TomlEntry& entry, const OptionValue& like) {
  if (std::holds_alternative<TextList>(like)) {
    if (const auto* text = std::get_if<std::string>(&entry.value)) return TextList{*text};
  } else if (std::holds_alternative<TextList>(entry.value)) {
    return FitToml({entry.key, TomlOther{"a list"}, entry.position}, like);
  }
  OptionValue value;
  std::string type;
  const std::string written = Description(entry, &value, &type);
  const bool other = std::holds_alternative<TomlOther>(entry.value);
  if (!other && value.index() == like.index()) return value;
  const auto* integer = std::get_if<int64_t>(&entry.value);
  if (integer && std::holds_alternative<double>(like)) return static_cast<double>(*integer);

  // The fix: the same value in the right type where that works, else the default as an example.
  OptionValue fixed = like;
  bool same = false;
  if (const auto* text = std::get_if<std::string>(&entry.value)) {
    try {
      fixed = ParseValue(*text, like, "");
      same = true;
    } catch (const InputError&) {
    }
  } else if (const auto* number = std::get_if<double>(&entry.value)) {
    int64_t whole = 0;
    same = std::holds_alternative<int64_t>(like) && AsInteger(*number, whole);
    if (same) fixed = whole;
  }
  if (!other && std::holds_alternative<std::string>(like)) {
    fixed = Bare(value);
    same = true;
  }
  throw InputError(StrCat(entry.position, ": ", written, " is ", type, ", expected ",
                          TypeWithArticle(like), same ? ": write " : ", such as ",
                          AsToml(entry.key, fixed)));
}

OptionValue ParseValue(const std::string& text, const OptionValue& like, const std::string& where) {
  if (std::holds_alternative<std::string>(like)) return text;
  if (std::holds_alternative<TextList>(like)) return TextList{text};
  if (text.empty())
    throw InputError(StrCat(where, ": the value is empty, expected ", TypeWithArticle(like)));
  if (std::holds_alternative<int64_t>(like)) return ParseInteger(text, like, where);
  if (std::holds_alternative<double>(like)) return ParseNumber(text, like, where);
  if (text == "true" || text == "1") return true;
  if (text == "false" || text == "0") return false;
  throw InputError(StrCat(where, ": expected true or false"));
}

double ParseDuration(std::string_view text) {
  if (text.empty()) return 0;
  double seconds = 0;
  for (std::string_view rest = text; !rest.empty();) {
    double number = 0;
    const auto [end, error] =
        std::from_chars(rest.data(), rest.data() + rest.size(), number, std::chars_format::fixed);
    rest.remove_prefix(static_cast<size_t>(end - rest.data()));
    if (error == std::errc() && rest.empty()) {
      throw InputError(StrCat("needs a unit: write ", text, "s, ", text, "m or ", text, "h"));
    }
    const double unit = rest.empty()          ? 0
                        : rest.front() == 's' ? 1
                        : rest.front() == 'm' ? 60
                        : rest.front() == 'h' ? 3600
                        : rest.front() == 'd' ? 86400
                                              : 0;
    if (error != std::errc() || unit == 0 || !(number >= 0 && number < 1e9)) {  // nor NaN
      throw InputError("must be a time, such as 90s, 10m, 2h or 1h30m");
    }
    seconds += number * unit;
    rest.remove_prefix(1);
  }
  if (seconds <= 0) throw InputError("must be longer than 0s");
  return seconds;
}

std::vector<std::string> WordsOf(std::string_view list) {
  std::vector<std::string> words(1);
  for (const char c : list) {
    if (c == ',') {
      words.emplace_back();
    } else if (c != ' ') {
      words.back() += c;
    }
  }
  return words;
}

bool IsText(std::string_view text) {
  return text.find('\0') == std::string_view::npos && data::ValidUtf8Prefix(text) == text.size();
}

std::string RangeInWords(const OptionSpec& spec) {
  const auto number = [](double value) {
    int64_t integer = 0;
    return AsInteger(value, integer) ? std::to_string(integer) : Digits(value);
  };
  std::string words;
  const auto add = [&](const char* relation, const std::optional<double>& bound) {
    if (bound) words += StrCat(words.empty() ? "" : " and ", relation, number(*bound));
  };
  add("at least ", spec.min);
  add("above ", spec.above);
  add("at most ", spec.max);
  add("below ", spec.below);
  return words;
}

std::string NotAChoice(const std::string& text, const std::vector<std::string>& choices) {
  std::vector<Candidate> candidates;
  std::string list;
  for (const std::string& choice : choices) {
    if (choice.empty()) continue;
    candidates.push_back({choice});
    list += StrCat(list.empty() ? "" : ", ", choice);
  }
  const std::vector<std::string> nearest = Nearest(text, candidates);
  const std::string must = StrCat("one of ", list);
  return nearest.empty() ? StrCat("must be ", must)
                         : StrCat("did you mean ", nearest.front(), "? It must be ", must);
}

}  // namespace lockstep::models
