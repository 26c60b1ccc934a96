// Reading the sources of values: TOML text, environment, command line.
#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "core/error.h"
#include "models/options/option_text.h"
#include "models/options/options.h"
#include "models/options/suggest.h"
#include "models/options/toml_reader.h"

namespace lockstep::models {
namespace {

constexpr std::streamsize kLargestFile = 1 << 20;

std::string Replace(std::string text, char from, char to) {
  std::replace(text.begin(), text.end(), from, to);
  return text;
}

// Kubernetes describes each service to each container: of one named lockstep-train it says
// LOCKSTEP_TRAIN_SERVICE_HOST, LOCKSTEP_TRAIN_PORT=tcp://10.0.0.7:80, LOCKSTEP_TRAIN_PORT_80_TCP,
// ...
bool IsOfKubernetes(const std::string& name, const std::string& text) {
  for (const char* part : {"_SERVICE_HOST", "_SERVICE_PORT", "_TCP", "_UDP", "_SCTP"}) {
    if (name.find(part) != std::string::npos) return true;
  }
  return name.ends_with("_PORT") && text.find("://") != std::string::npos;
}

}  // namespace

std::string ReadConfigurationFile(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream)
    throw InputError(StrCat("cannot read the configuration ", path, ": ", std::strerror(errno)));
  std::string text(kLargestFile + 1, '\0');
  stream.read(text.data(), kLargestFile + 1);
  if (stream.bad() || (stream.gcount() == 0 && !stream.eof()))
    throw InputError(StrCat("cannot read the configuration ", path,
                            ": is it a folder? A TOML file is expected"));
  if (stream.gcount() > kLargestFile)
    throw InputError(StrCat("cannot read the configuration ", path, ": it is larger than ",
                            kLargestFile, " bytes; a TOML file of options is expected"));
  text.resize(stream.gcount());
  return text;
}

Options::Assignments Options::ReadToml(std::string_view text, const std::string& name,
                                       OptionSource source) {
  const bool is_file = source == OptionSource::kFile;
  // Earlier versions wrote defaults among what was asked for.
  const bool all_open = is_file && text.starts_with("# Configuration of ") &&
                        text.substr(0, text.find('\n')).find(", resolved: ") != text.npos;
  Assignments assignments;
  for (TomlEntry entry : models::ReadToml(text, name)) {
    bool open = all_open;
    if (is_file && (entry.key == kDefaults || entry.key.starts_with(StrCat(kDefaults, ".")))) {
      open = true;
      entry.key.erase(0, kDefaults.size() + 1);
      if (entry.key.empty() && std::holds_alternative<TomlSection>(entry.value)) continue;
    }
    Option* option = Find(entry.key);
    if (option && option->flag) option = nullptr;
    if (std::holds_alternative<TomlSection>(entry.value)) {
      if (option)
        throw InputError(StrCat(entry.position, ": ", entry.key, " is a section, expected ",
                                TypeWithArticle(option->initial), ": write ",
                                AsToml(entry.key, option->initial)));
      if (!IsSection(entry.key))
        throw InputError(StrCat(entry.position, ": unknown section [", entry.key, "]",
                                SuggestSection(entry.key)));
      continue;
    }
    if (!option)
      throw InputError(StrCat(entry.position, ": ",
                              IsSection(entry.key) ? "a value for the section " : "unknown key ",
                              entry.key, Suggest(entry.key, source)));
    const auto* former = std::get_if<bool>(&entry.value);
    const OptionValue value = former && !option->spec.formerly.empty()
                                  ? OptionValue(option->spec.formerly.at(*former))
                                  : FitToml(entry, option->initial);
    Check(*option, value, StrCat(entry.position, ": ", AsToml(entry.key, value)));
    const std::string origin =
        source == OptionSource::kPreset ? name : entry.position;  // a preset's lines are ours
    assignments.push_back({option, value, open ? OptionSource::kDefault : source, origin});
  }
  return assignments;
}

Options::Assignments Options::ReadEnvironment(const Environment& environment) {
  std::map<std::string, Option*> known;
  for (Option& option : options_)
    if (!option.flag) known[option.variable] = &option;
  Assignments assignments;
  for (const auto& [name, text] : environment) {
    if (!name.starts_with(program_.environment_prefix + "_")) continue;
    const auto it = known.find(name);
    if (it != known.end()) {
      assignments.push_back(
          FromText(*it->second, text, OptionSource::kEnvironment, StrCat(name, "=", text)));
      continue;
    }
    if (!IsOfKubernetes(name, text)) RefuseVariable(name);
  }
  return assignments;
}

// Other programs may share the prefix: only a variable with one of our sections is surely wrong.
void Options::RefuseVariable(const std::string& variable) {
  std::string key = variable.substr(program_.environment_prefix.size() + 1);
  for (char& c : key) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  std::vector<Candidate> candidates;
  for (const Option& option : options_) {
    if (option.listed()) candidates.push_back({Replace(option.key, '.', '_')});
    const size_t dot = option.key.rfind('.');
    if (dot == std::string::npos ||
        !key.starts_with(Replace(option.key.substr(0, dot), '.', '_') + '_'))
      continue;
    key[dot] = '.';
    throw InputError(StrCat("environment: unknown variable ", variable,
                            Suggest(key, OptionSource::kEnvironment)));
  }
  const std::vector<std::string> nearest = Nearest(key, candidates);
  if (!nearest.empty())
    Warn(StrCat("environment: ", variable, " is not an option and was ignored: did you mean ",
                EnvironmentName(nearest.front()), "?"));
}

Options::Assignments Options::ReadArguments(const std::vector<std::string>& arguments) {
  Assignments assignments;
  const Option* last_switch = nullptr;  // a boolean without a value, right before this argument
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    const Option* switch_before = std::exchange(last_switch, nullptr);
    if (!argument.starts_with("-")) {
      const bool is_value = argument == "true" || argument == "false";
      if (switch_before && (is_value || program_.takes_file)) {
        std::string ways;
        if (is_value) ways = StrCat("--", switch_before->key, "=", argument);
        if (program_.takes_file) ways += StrCat(is_value ? ", or " : "", "the TOML file first");
        throw InputError(
            StrCat("command line: ", argument, " after --", switch_before->key, ": write ", ways));
      }
      if (!program_.takes_file || !file_.empty())
        throw InputError(StrCat("command line: unexpected argument '", argument, "'",
                                program_.takes_file ? StrCat(" after the file ", file_) : "",
                                ": options look like --section.key=value, see --help"));
      if (argument.empty()) throw InputError("command line: the name of the TOML file is empty");
      file_ = argument;
      continue;
    }
    const size_t equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    std::optional<std::string> value;
    if (equals != std::string::npos) value = argument.substr(equals + 1);
    const size_t dashes = std::min(name.find_first_not_of('-'), name.size());
    const std::string key = Replace(name.substr(dashes), '-', '_');
    Option* option = dashes == 2 ? Find(key) : nullptr;
    if (!option)
      throw InputError(
          StrCat("command line: unknown option ", name, Suggest(key, OptionSource::kCommandLine)));
    const bool is_switch =
        std::holds_alternative<bool>(option->initial) || !option->spec.formerly.empty();
    if (!value && is_switch) {
      value = "true";
      last_switch = option;
    } else if (!value) {
      if (i + 1 == arguments.size() || arguments[i + 1].starts_with("--"))
        throw InputError(StrCat("command line: ", name, " needs a value: write ", name, "=",
                                Bare(option->initial).empty() ? "TEXT" : Bare(option->initial)));
      value = arguments[++i];
    }
    Assignment assignment = FromText(*option, *value, OptionSource::kCommandLine,
                                     StrCat("--", option->key, "=", *value));
    const auto same = std::find_if(assignments.begin(), assignments.end(),
                                   [&](const Assignment& a) { return a.option == option; });
    if (auto* list = std::get_if<TextList>(&assignment.value); list && same != assignments.end()) {
      std::get<TextList>(same->value).push_back(list->front());
      continue;
    }
    assignments.push_back(std::move(assignment));
  }
  return assignments;
}

Options::Assignment Options::FromText(Option& option, const std::string& text, OptionSource source,
                                      const std::string& spelled) {
  const std::string where = StrCat(Name(source), ": ", spelled);
  const bool former = !option.spec.formerly.empty() && (text == "true" || text == "false");
  const OptionValue value = former ? OptionValue(option.spec.formerly.at(text == "true"))
                                   : ParseValue(text, option.initial, where);
  Check(option, value, where);
  return {&option, value, source, std::string(Name(source))};
}

std::string Options::SuggestSection(std::string_view section) const {
  std::vector<Candidate> sections;
  std::string all;
  for (const std::string& name : Sections()) {
    if (name.empty()) continue;
    sections.push_back({name});
    all += StrCat(all.empty() ? "" : ", ", name);
  }
  const std::vector<std::string> nearest = Nearest(section, sections);
  return nearest.empty() ? StrCat("; there are ", all)
                         : StrCat(": did you mean [", nearest.front(), "]?");
}

std::string Options::Suggest(std::string_view key, OptionSource source) const {
  const auto spell = [&](const std::string& name) {
    if (source == OptionSource::kCommandLine) return "--" + name;
    return source == OptionSource::kEnvironment ? EnvironmentName(name) : name;
  };
  std::vector<Candidate> candidates;
  for (const Option& option : options_)
    if (option.listed() || (option.flag && source == OptionSource::kCommandLine))
      candidates.push_back({option.key, option.spec.aliases});
  std::vector<std::string> nearest;
  if (IsSection(key)) {  // A section in place of a key: show what is in it.
    for (const Candidate& candidate : candidates)
      if (candidate.key.starts_with(StrCat(key, ".")) && nearest.size() < 3)
        nearest.push_back(candidate.key);
  } else {
    nearest = Nearest(key, candidates);
  }
  if (nearest.empty()) return StrCat("; ", program_.name, " --help lists the options");
  std::string text = ": did you mean ";
  for (size_t i = 0; i < nearest.size(); ++i)
    text += StrCat(i == 0 ? "" : i + 1 == nearest.size() ? " or " : ", ", spell(nearest[i]));
  return text + "?";
}

}  // namespace lockstep::models
