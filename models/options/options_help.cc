// What the registry shows: help, the resolved configuration, differences.
#include <algorithm>
#include <sstream>

#include "core/error.h"
#include "models/options/option_text.h"
#include "models/options/options.h"

namespace lockstep::models {
namespace {

constexpr int kTextColumn = 34;  // where the explanations of options start

// Appends `text` word by word, wrapped at `columns`, later lines indented by `indent`; the first
// line already has `used` characters.
void Wrap(std::string& out, std::string_view text, int used, int indent, int columns) {
  std::istringstream words{std::string(text)};
  bool first = true;
  for (std::string word; words >> word; first = false) {
    const int length = static_cast<int>(word.size());
    if (!first && used + 1 + length > columns) {
      out += StrCat("\n", std::string(indent, ' '));
      used = indent;
    } else if (!first) {
      out += ' ';
      ++used;
    }
    out += word;
    used += length;
  }
  out += '\n';
}

// "  --train.steps=N   what it does"
void Entry(std::string& out, const std::string& left, std::string_view text, int columns) {
  const int indent = std::min(kTextColumn, columns / 2);
  std::string head = StrCat("  ", left);
  const int width = static_cast<int>(head.size());
  if (width + 2 > indent) {
    head += StrCat("\n", std::string(indent, ' '));
  } else {
    head += std::string(indent - width, ' ');
  }
  out += head;
  Wrap(out, text, indent, indent, columns);
}

std::string Section(std::string_view key) {
  const size_t dot = key.rfind('.');
  return std::string(key.substr(0, dot == std::string_view::npos ? 0 : dot));
}

std::string Placeholder(const OptionValue& value) {
  if (std::holds_alternative<bool>(value)) return "";
  if (std::holds_alternative<int64_t>(value)) return "=N";
  return std::holds_alternative<double>(value) ? "=X" : "=TEXT";
}

// "cosine, linear"
std::string ChoicesOf(const OptionSpec& spec) {
  std::string choices;
  for (const std::string& choice : spec.choices)
    if (!choice.empty()) choices += StrCat(choices.empty() ? "" : ", ", choice);
  return choices;
}

std::string Explanation(const OptionSpec& spec, const OptionValue& initial) {
  const std::string choices = ChoicesOf(spec);
  const auto* text = std::get_if<std::string>(&initial);
  const auto* list = std::get_if<TextList>(&initial);
  const bool empty = (text && text->empty()) || (list && list->empty());
  return StrCat(spec.doc, choices.empty() ? "" : ": ", choices,
                list ? "; may be given several times" : "",
                empty ? "" : StrCat(" (default ", ToToml(initial), ")"));
}

// A row of a Markdown table, in which | and * are only text.
std::string Row(std::initializer_list<std::string> cells) {
  std::string row = "|";
  for (const std::string& cell : cells) {
    row += ' ';
    for (const char c : cell) {
      if (c == '|' || c == '*') row += '\\';
      row += c;
    }
    row += " |";
  }
  return row + "\n";
}

}  // namespace

// A section's options may be added in several places, but it is listed once.
std::vector<std::string> Options::Sections() const {
  std::vector<std::string> sections;
  for (const Option& option : options_) {
    const std::string section = Section(option.key);
    if (option.listed() && std::find(sections.begin(), sections.end(), section) == sections.end())
      sections.push_back(section);
  }
  return sections;
}

std::string Options::Help(int columns) const {
  columns = std::max(columns, 40);
  std::string out;
  Wrap(out, StrCat(program_.name, ": ", program_.summary), 0, 0, columns);
  if (!program_.example.empty()) out += StrCat("\nExample: ", program_.example, "\n");
  out += StrCat("\nUsage: ", program_.name, program_.takes_file ? " [config.toml]" : "",
                " [--section.key=value ...]\n");
  const auto first =
      std::find_if(options_.begin(), options_.end(), [](const Option& o) { return o.listed(); });
  if (first != options_.end())
    Wrap(out,
         StrCat("Later sources win: defaults", presets_.empty() ? "" : ", preset",
                program_.takes_file ? ", file" : "", ", environment (", EnvironmentName(first->key),
                "), command line."),
         0, 0, columns);
  out += "\n";
  for (const Option& option : options_)
    if (option.flag) Entry(out, "--" + option.key, option.spec.doc, columns);
  for (const std::string& section : Sections()) {
    out += section.empty() ? "\n" : StrCat("\n[", section, "]\n");
    for (const Option& option : options_)
      if (option.listed() && Section(option.key) == section)
        Entry(out, StrCat("--", option.key, Placeholder(option.initial)),
              Explanation(option.spec, option.initial), columns);
  }
  if (!presets_.empty()) out += StrCat("\nValues of --", preset_key_, "\n");
  for (const Preset& preset : presets_) Entry(out, preset.name, preset.doc, columns);
  return out;
}

std::string Options::Page() const {
  std::string out = StrCat("# Options of ", program_.name, "\n\nWritten by `", program_.name,
                           " --help=markdown`. On the command line an option is "
                           "`--section.key=value`, in the environment ",
                           program_.environment_prefix, "_SECTION_KEY, in a file `key = value` ",
                           "below `[section]`.\n");
  for (const std::string& section : Sections()) {
    out +=
        StrCat("\n## ", section.empty() ? "Without a section" : section, "\n\n",
               Row({"Option", "Type", "Default", "Range", "Meaning"}), "|---|---|---|---|---|\n");
    for (const Option& option : options_) {
      if (!option.listed() || Section(option.key) != section) continue;
      const std::string range = option.key == preset_key_
                                    ? "a preset, below"
                                    : ChoicesOf(option.spec) + RangeInWords(option.spec);
      out += Row({StrCat("`", option.key, "`"), TypeWithArticle(option.initial),
                  StrCat("`", ToToml(option.initial), "`"), range, option.spec.doc});
    }
  }
  out += StrCat("\n## Switches\n\nOnly on the command line.\n\n", Row({"Switch", "Meaning"}),
                "|---|---|\n");
  for (const Option& option : options_)
    if (option.flag) out += Row({StrCat("`--", option.key, "`"), option.spec.doc});
  if (presets_.empty()) return out;
  out +=
      StrCat("\n## Values of ", preset_key_, "\n\n", Row({"Preset", "What it is"}), "|---|---|\n");
  for (const Preset& preset : presets_) out += Row({StrCat("`", preset.name, "`"), preset.doc});
  return out;
}

std::string Options::DumpPart(bool written, bool sources) const {
  std::string out;
  std::vector<std::string> sections = Sections();
  // TOML requires keys without a section to come first.
  std::stable_partition(sections.begin(), sections.end(), [](const auto& s) { return s.empty(); });
  for (const std::string& section : sections) {
    std::string lines;
    for (const Option& option : options_) {
      if (!option.listed() || Section(option.key) != section) continue;
      if (IsWritten(option.key) != written) continue;
      std::string line =
          AsToml(std::string_view(option.key).substr(option.key.rfind('.') + 1), value(option.key));
      if (sources) {
        line.resize(std::max<size_t>(line.size(), 32), ' ');
        line += StrCat("  # ",
                       option.source == OptionSource::kDial ? option.origin : Name(option.source));
      }
      lines += line + "\n";
    }
    if (lines.empty()) continue;
    const std::string name =
        written ? section : StrCat(kDefaults, section.empty() ? "" : ".", section);
    if (!name.empty()) out += StrCat("\n[", name, "]\n");
    out += lines;
  }
  return out;
}

std::string Options::Dump(bool sources) const {
  return StrCat(
      "# Configuration of ", program_.name,
      program_.takes_file ? StrCat(": ", program_.name, " with this file does the same.") : "",
      "\n", DumpPart(true, sources),
      "\n# Nobody asked for the following: these are defaults and values of presets. A "
      "line that you\n# change counts as asked for.\n",
      DumpPart(false, sources));
}

std::string Options::DescribeDial() const {
  std::vector<std::pair<std::string, std::string>> lines;  // values by their origin
  for (const Option& option : options_) {
    if (option.source != OptionSource::kDial) continue;
    const std::string text = AsToml(option.key, value(option.key));
    const auto same = std::ranges::find(lines, option.origin, &decltype(lines)::value_type::first);
    if (same == lines.end()) {
      lines.emplace_back(option.origin, text);
    } else {
      same->second += StrCat(", ", text);
    }
  }
  std::string out;
  for (const auto& [origin, values] : lines) {
    out += StrCat(out.empty() ? "" : "\n", values, "  # ", origin);
  }
  return out;
}

std::vector<OptionDifference> Compare(const Options& a, const Options& b) {
  std::vector<OptionDifference> pairs;
  const auto value = [](const Options& options, const std::string& key) {
    return options.Find(key) ? ToToml(options.value(key)) : "(absent)";
  };
  for (const Options* options : {&a, &b}) {
    for (const auto& option : options->options_) {
      const std::string& key = option.key;
      if (!option.listed() || (options == &b && a.Find(key))) continue;
      pairs.push_back(
          {key, value(a, key), value(b, key), option.spec.operational, option.spec.of_machine});
    }
  }
  return pairs;
}

std::vector<OptionDifference> Difference(const Options& a, const Options& b) {
  std::vector<OptionDifference> pairs = Compare(a, b);
  std::erase_if(pairs, [](const OptionDifference& pair) { return pair.a == pair.b; });
  return pairs;
}

std::string ToString(const std::vector<OptionDifference>& differences) {
  std::string text;
  for (const OptionDifference& difference : differences)
    text += StrCat("  ", difference.key, ": ", difference.a, " -> ", difference.b, "\n");
  return text;
}

}  // namespace lockstep::models
