#include "models/toml_reader.h"

#include <algorithm>
#include <stdexcept>
#include <tuple>

#include "core/error.h"

// Some malformed texts break assumptions of toml++ 3.3, which are undefined behaviour under NDEBUG.
// Here, the only file that includes it, they are exceptions in every build.
#undef NDEBUG
namespace {
[[noreturn]] void ThrowBrokenAssumption(const char* what) { throw std::logic_error(what); }
}  // namespace
#define TOML_ASSERT(expr) ((expr) ? void() : ThrowBrokenAssumption(#expr))
#include <toml++/toml.h>

namespace lockstep::models {
namespace {

constexpr int64_t kMaxDotsPerLine = 250;

struct Located {
  toml::source_position position;
  TomlEntry entry;
};

std::string At(const std::string& name, const toml::source_position& position) {
  return StrCat(name, ":", position.line, ":", position.column);
}

bool IsBare(std::string_view key) {
  return !key.empty() && std::all_of(key.begin(), key.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  });
}

// Refuses what toml++ 3.3 does not survive, by a walk over strings, comments and the rest:
// - a character outside of ASCII where neither is (é instead of a value): its test for white space
//   then runs into an "unreachable" of the compiler, which is undefined behaviour;
// - no name in a section's brackets, such as [=]: a broken assumption;
// - a key of many thousand parts: tables are destroyed recursively and would overflow the stack.
class Guard {
 public:
  Guard(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  void Run() {
    if (text_.starts_with("\xef\xbb\xbf")) at_ = 3;  // byte order mark
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '\n') {
        EndLine();
      } else if (inside_ == Inside::kNothing) {
        Plain(c);
      } else if (c == '\\' && delimiter_ == '"' && inside_ != Inside::kComment) {
        // The escaped character ends nothing; a newline is counted in the next round.
        Skip(at_ + 1 < text_.size() && text_[at_ + 1] != '\n' ? 2 : 1);
      } else if (c == delimiter_ && inside_ != Inside::kComment) {
        Close();
      } else {
        Skip(1);
      }
    }
  }

 private:
  enum class Inside { kNothing, kComment, kString, kLongString };

  void Skip(size_t count) {
    for (const size_t end = at_ + count; at_ < end; ++at_)
      if ((static_cast<unsigned char>(text_[at_]) & 0xc0) != 0x80) ++column_;
  }

  size_t CountDelimiters() const {
    const size_t end = text_.find_first_not_of(delimiter_, at_);
    return std::min(end, text_.size()) - at_;
  }

  void EndLine() {
    if (inside_ != Inside::kLongString) inside_ = Inside::kNothing;
    ++at_;
    ++line_;
    column_ = 1;
    dots_ = 0;
  }

  void Plain(char c) {
    if (static_cast<unsigned char>(c) >= 0x80) Refuse("text outside of ASCII must be in quotes");
    if (c == '.' && ++dots_ > kMaxDotsPerLine)
      Refuse(StrCat("more than ", kMaxDotsPerLine,
                    " dots on one line; options look like section.key = value"));
    if (c == '[' && IsLineStart()) CheckSectionName();
    if (c == '#') inside_ = Inside::kComment;
    if (c != '"' && c != '\'') return Skip(1);
    delimiter_ = c;
    const bool is_long = CountDelimiters() >= 3;
    inside_ = is_long ? Inside::kLongString : Inside::kString;
    Skip(is_long ? 3 : 1);
  }

  bool IsLineStart() const {
    const size_t before = text_.find_last_not_of(" \t", at_ - 1);
    return at_ == 0 || before == std::string_view::npos || text_[before] == '\n' ||
           (before == 2 && text_[before] == '\xbf');
  }

  void CheckSectionName() const {
    size_t name = text_.find_first_not_of(" \t", at_ + 1);
    if (name < text_.size() && text_[name] == '[') name = text_.find_first_not_of(" \t", name + 1);
    if (name >= text_.size()) return;
    const char c = text_[name];
    if (!IsBare({&c, 1}) && c != '"' && c != '\'' && c != ']')
      Refuse("the name of a section must follow its bracket, as in [train]");
  }

  void Close() {
    const size_t run = CountDelimiters();
    if (inside_ == Inside::kString) {
      inside_ = Inside::kNothing;
      Skip(1);
    } else if (run >= 3) {  // the last three close; up to two before them are text
      inside_ = Inside::kNothing;
      Skip(std::min<size_t>(run, 5));
    } else {
      Skip(run);
    }
  }

  [[noreturn]] void Refuse(const std::string& why) const {
    throw InputError(StrCat(name_, ":", line_, ":", column_, ": ", why));
  }

  const std::string_view text_;
  const std::string& name_;
  Inside inside_ = Inside::kNothing;
  char delimiter_ = 0;
  size_t at_ = 0;
  int64_t line_ = 1, column_ = 1, dots_ = 0;
};

std::string OtherType(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::array:
      return "a list";
    case toml::node_type::date:
      return "a date";
    case toml::node_type::time:
      return "a time";
    case toml::node_type::date_time:
      return "a date with a time";
    default:
      return "of an unknown type";
  }
}

void Flatten(const toml::table& table, const std::string& prefix, const std::string& name,
             std::vector<Located>& entries) {
  for (const auto& [key, node] : table) {
    const std::string part =
        IsBare(key.str()) ? std::string(key.str()) : StrCat("\"", key.str(), "\"");
    const std::string path = prefix.empty() ? part : StrCat(prefix, ".", part);
    if (const toml::table* section = node.as_table()) {
      const toml::source_position position = key.source().begin;
      entries.push_back({position, {path, TomlSection{}, At(name, position)}});
      Flatten(*section, path, name, entries);
      continue;
    }
    const toml::source_position position = node.source().begin;
    TomlEntry entry{path, TomlOther{OtherType(node)}, At(name, position)};
    if (const auto* boolean = node.as_boolean()) {
      entry.value = boolean->get();
    } else if (const auto* integer = node.as_integer()) {
      entry.value = integer->get();
    } else if (const auto* number = node.as_floating_point()) {
      entry.value = number->get();
    } else if (const auto* string = node.as_string()) {
      entry.value = string->get();
    }
    entries.push_back({position, std::move(entry)});
  }
}

}  // namespace

std::vector<TomlEntry> ReadToml(std::string_view text, const std::string& name) {
  Guard(text, name).Run();
  std::vector<Located> located;
  try {
    Flatten(toml::parse(text, name), "", name, located);
  } catch (const toml::parse_error& error) {
    throw InputError(StrCat(At(name, error.source().begin), ": ", error.description()));
  } catch (const std::logic_error&) {
    throw InputError(StrCat(name, ": is not TOML; options look like section.key = value"));
  }
  std::stable_sort(located.begin(), located.end(), [](const Located& a, const Located& b) {
    return std::tie(a.position.line, a.position.column) <
           std::tie(b.position.line, b.position.column);
  });
  std::vector<TomlEntry> entries;
  entries.reserve(located.size());
  for (Located& item : located) entries.push_back(std::move(item.entry));
  return entries;
}

}  // namespace lockstep::models
