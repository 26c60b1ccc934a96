// The registry itself: declaring options, checking values, and deciding which value wins.
#include "models/options/options.h"

#include <algorithm>
#include <cmath>
#include <iostream>
#include <utility>

#include "core/error.h"
#include "lockstep/version.h"
#include "models/options/invocation.h"
#include "models/options/option_text.h"

namespace lockstep::models {
namespace {

bool IsKey(std::string_view key) {
  return !key.empty() && key.front() != '.' && key.back() != '.' &&
         key.find("..") == std::string_view::npos &&
         std::all_of(key.begin(), key.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
         });
}

}  // namespace

std::string_view Name(OptionSource source) {
  switch (source) {
    case OptionSource::kDefault:
      return "default";
    case OptionSource::kPreset:
      return "preset";
    case OptionSource::kDial:
      return "dial";
    case OptionSource::kFile:
      return "file";
    case OptionSource::kEnvironment:
      return "environment";
    case OptionSource::kCommandLine:
      return "command line";
  }
  return "unknown";
}

Options::Options(ProgramInfo program) : program_(std::move(program)) {
  AddFlag("help", &help_, "show this text; --help=markdown: the same as a page");
  AddFlag("version", &version_, "show the version");
  AddFlag("print_config", &print_config_,
          "show the resolved configuration as a TOML file, with the source of each value");
}

void Options::Insert(Option option) {
  LS_CHECK(IsKey(option.key), "option key '", option.key,
           "' must be section.key in lower case, digits and '_'");
  LS_CHECK(option.key != kDefaults && !option.key.starts_with(StrCat(kDefaults, ".")), "option ",
           option.key, " lies in [", kDefaults, "], where configuration files have what is open");
  LS_CHECK(!Find(option.key), "option ", option.key, " is added twice");
  LS_CHECK(!IsSection(option.key), "option ", option.key, " has the name of a section");
  for (size_t dot = option.key.find('.'); dot != std::string::npos;
       dot = option.key.find('.', dot + 1))
    LS_CHECK(!Find(option.key.substr(0, dot)), "option ", option.key, " has ",
             option.key.substr(0, dot), ", which is an option, for its section");
  option.variable = EnvironmentName(option.key);
  for (const Option& other : options_)
    LS_CHECK(other.variable != option.variable, "options ", option.key, " and ", other.key,
             " share the environment variable ", option.variable);
  std::visit([&](const auto* target) { option.initial = *target; }, option.target);
  index_.emplace(option.key, options_.size());
  options_.push_back(std::move(option));
}

void Options::Add(std::string key, bool* value, OptionSpec spec) {
  Insert({.key = std::move(key), .target = value, .spec = std::move(spec)});
}
void Options::Add(std::string key, int64_t* value, OptionSpec spec) {
  Insert({.key = std::move(key), .target = value, .spec = std::move(spec)});
}
void Options::Add(std::string key, double* value, OptionSpec spec) {
  Insert({.key = std::move(key), .target = value, .spec = std::move(spec)});
}
void Options::Add(std::string key, std::string* value, OptionSpec spec) {
  Insert({.key = std::move(key), .target = value, .spec = std::move(spec)});
}

void Options::Add(std::string key, TextList* value, OptionSpec spec) {
  Insert({.key = std::move(key), .target = value, .spec = std::move(spec)});
}

void Options::AddFlag(std::string name, bool* value, std::string doc) {
  Insert({.key = std::move(name), .target = value, .spec = {.doc = std::move(doc)}, .flag = true});
}

void Options::AddRemoved(std::string key, OptionValue meaning, std::string instead) {
  LS_CHECK(!instead.empty(), "option ", key, " was removed: say what to write instead");
  Option option{.key = std::move(key), .target = {}, .spec = {}, .instead = std::move(instead)};
  std::visit([&](auto& value) { option.target = &value; }, removed_.emplace_back(meaning));
  Insert(std::move(option));
}

void Options::AddPresets(std::string key, std::string* value, std::vector<Preset> presets,
                         OptionSpec spec) {
  LS_CHECK(preset_key_.empty(), "presets are added twice: ", preset_key_, " and ", key);
  spec.choices = {""};
  for (const Preset& preset : presets) spec.choices.push_back(preset.name);
  presets_ = std::move(presets);
  preset_key_ = key;
  Add(std::move(key), value, std::move(spec));
}

void Options::AddDial(std::string key, int64_t* value, DialLaws laws, OptionSpec spec) {
  LS_CHECK(dial_key_.empty(), "dials are added twice: ", dial_key_, " and ", key);
  laws_ = std::move(laws);
  dial_key_ = key;
  Add(std::move(key), value, std::move(spec));
}

void Options::OnResolve(std::function<void(Options&)> hook) { hooks_.push_back(std::move(hook)); }

const Options::Option* Options::Find(std::string_view key) const {
  const auto it = index_.find(key);
  return it == index_.end() ? nullptr : &options_[it->second];
}

Options::Option* Options::Find(std::string_view key) {
  return const_cast<Option*>(std::as_const(*this).Find(key));
}

const Options::Option& Options::Get(std::string_view key) const {
  const Option* option = Find(key);
  LS_CHECK(option, "there is no option ", key);
  return *option;
}

bool Options::IsSection(std::string_view name) const {
  return std::any_of(options_.begin(), options_.end(), [&](const Option& option) {
    return option.key.size() > name.size() && option.key.starts_with(name) &&
           option.key[name.size()] == '.';
  });
}

std::string Options::EnvironmentName(std::string_view key) const {
  std::string name = StrCat(program_.environment_prefix, "_", key);
  for (char& c : name) c = c == '.' ? '_' : static_cast<char>(std::toupper(c));
  return name;
}

void Options::Reset() {
  warnings_.clear();
  file_.clear();
  for (Option& option : options_) {
    option.source = OptionSource::kDefault;
    option.origin.clear();
    std::visit(
        [&](auto* target) {
          *target = std::get<std::remove_pointer_t<decltype(target)>>(option.initial);
        },
        option.target);
  }
}

// ---- Checks ----

void Options::Check(const Option& option, const OptionValue& value, const std::string& spelled) {
  if (!option.instead.empty() && value != option.initial)
    throw InputError(StrCat(spelled, ": this option was removed: ", option.instead));
  const OptionSpec& spec = option.spec;
  if (const auto* list = std::get_if<TextList>(&value)) {
    for (const std::string& text : *list) Check(option, text, spelled);
    return;
  }
  if (const auto* text = std::get_if<std::string>(&value)) {
    if (!IsText(*text))
      throw InputError(StrCat(spelled, ": must be UTF-8 text without NUL characters"));
    if (spec.check) {
      const std::string refusal = spec.check(*text);
      if (!refusal.empty()) throw InputError(StrCat(spelled, ": ", refusal));
    }
    if (!spec.choices.empty() &&
        std::find(spec.choices.begin(), spec.choices.end(), *text) == spec.choices.end())
      throw InputError(StrCat(spelled, ": ", NotAChoice(*text, spec.choices)));
    return;
  }
  double number = 0;
  if (const auto* integer = std::get_if<int64_t>(&value)) number = static_cast<double>(*integer);
  if (const auto* real = std::get_if<double>(&value)) number = *real;
  if (!std::isfinite(number)) throw InputError(StrCat(spelled, ": must be a finite number"));
  const bool fits = (!spec.min || number >= *spec.min) && (!spec.above || number > *spec.above) &&
                    (!spec.max || number <= *spec.max) && (!spec.below || number < *spec.below);
  if (!fits) throw InputError(StrCat(spelled, " is out of range: it must be ", RangeInWords(spec)));
}

void Options::Validate() {
  warnings_.clear();
  for (const Option& option : options_)
    if (!option.flag) Check(option, value(option.key), AsToml(option.key, value(option.key)));
  for (const auto& hook : hooks_) hook(*this);
}

// ---- Which value wins ----

void Options::Parse(const std::vector<std::string>& arguments, const Environment& environment) {
  Reset();
  // These are answered even if the rest of the command line is wrong.
  for (const std::string& argument : arguments) {
    if (argument == "--help=markdown") page_ = true;
    if (argument == "--help" || argument == "-h" || page_) help_ = true;
    if (argument == "--version") version_ = true;
  }
  if (help_ || version_) return;
  const Assignments command_line = ReadArguments(arguments);
  Assignments file;
  if (!file_.empty()) file = ReadToml(ReadConfigurationFile(file_), file_, OptionSource::kFile);
  Resolve(file, ReadEnvironment(environment), command_line);
}

void Options::ParseToml(std::string_view text, const std::string& name) {
  Reset();
  Resolve(ReadToml(text, name, OptionSource::kFile), {}, {});
}

template <class T>
T Options::ValueIn(std::string_view key, std::initializer_list<const Assignments*> sources) const {
  if (key.empty()) return {};
  T selected = std::get<T>(Get(key).initial);
  for (const Assignments* assignments : sources)
    for (const Assignment& assignment : *assignments)
      if (assignment.option->key == key) selected = std::get<T>(assignment.value);
  return selected;
}

void Options::Resolve(const Assignments& file, const Assignments& environment,
                      const Assignments& command_line) {
  const auto selected = ValueIn<std::string>(preset_key_, {&file, &environment, &command_line});
  const auto position = ValueIn<int64_t>(dial_key_, {&file, &environment, &command_line});
  for (const Preset& preset : presets_)
    if (preset.name == selected && !selected.empty())
      Apply(ReadToml(preset.toml, StrCat("preset ", preset.name), OptionSource::kPreset));
  Assignments written = file;  // but what is open
  std::erase_if(written, [](const Assignment& a) { return a.source == OptionSource::kDefault; });
  Apply(written);
  Apply(environment);
  Apply(command_line);
  if (position != 0) ApplyDial(position);
  // What a file has by default includes its preset and what follows from its dial, and gives way to
  // others.
  const bool same = selected == ValueIn<std::string>(preset_key_, {&file}) &&
                    position == ValueIn<int64_t>(dial_key_, {&file});
  ApplyDefaults(file, /*over_preset=*/same);
  for (const auto& hook : hooks_) hook(*this);
}

void Options::ApplyDial(int64_t position) {
  const Given given = [this](std::string_view key) {
    return IsWritten(key) ? std::optional(value(key)) : std::nullopt;
  };
  Assignments following;
  for (auto& [key, value, reason] : laws_(position, given)) {
    LS_CHECK(Get(key).initial.index() == value.index(), "a law of ", dial_key_, ": ", key, " is ",
             TypeWithArticle(Get(key).initial));
    if (IsWritten(key)) continue;
    following.push_back({Find(key), std::move(value), OptionSource::kDial,
                         StrCat("follows from ", dial_key_, " = ", position, ": ", reason)});
  }
  Apply(following);
}

void Options::ApplyDefaults(const Assignments& file, bool over_preset) {
  for (Assignment assignment : file) {
    const Option& option = *assignment.option;
    if (assignment.source != OptionSource::kDefault || IsWritten(option.key)) continue;
    if (!over_preset && option.source != OptionSource::kDefault) continue;
    assignment.source = OptionSource::kFile;
    if (value(option.key) != assignment.value) Apply({std::move(assignment)});
  }
}

void Options::Apply(const Assignments& assignments) {
  for (const Assignment& assignment : assignments) {
    Option& option = *assignment.option;
    option.source = assignment.source;
    option.origin = assignment.origin;
    std::visit(
        [&](auto* target) {
          *target = std::get<std::remove_pointer_t<decltype(target)>>(assignment.value);
        },
        option.target);
  }
}

OptionSource Options::source(std::string_view key) const { return Get(key).source; }

bool Options::IsWritten(std::string_view key) const { return source(key) >= OptionSource::kFile; }

std::set<std::string> Options::Written() const {
  std::set<std::string> keys;
  for (const Option& option : options_)
    if (option.listed() && IsWritten(option.key)) keys.insert(option.key);
  return keys;
}

void Options::MarkWritten(const std::set<std::string>& keys) {
  for (const std::string& key : keys)
    if (Option* option = Find(key)) option->source = OptionSource::kFile;
}

OptionValue Options::value(std::string_view key) const {
  return std::visit([](const auto* target) { return OptionValue(*target); }, Get(key).target);
}

std::string WithDescriptions(std::string_view text,
                             const std::function<std::string(std::string_view)>& describe) {
  std::string result;
  for (size_t open; (open = text.find('{')) != text.npos;) {
    result += text.substr(0, open);
    text.remove_prefix(open);
    const size_t close = text.find('}');
    const std::string_view key = text.substr(1, close == text.npos ? 0 : close - 1);
    const bool is_key =
        !key.empty() && key.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_.") == key.npos;
    result += is_key ? describe(key) : "{";
    text.remove_prefix(is_key ? close + 1 : 1);
  }
  return result.append(text);
}

std::string Options::Describe(std::string_view key) const {
  return StrCat(AsToml(key, value(key)), " (", Name(source(key)), ")");
}

void Options::Fail(const std::vector<std::string_view>& keys, const std::string& message) const {
  const Option* strongest = nullptr;
  for (const std::string_view key : keys) {
    const Option& option = Get(key);
    if (!strongest || option.source > strongest->source) strongest = &option;
  }
  const bool placed = strongest && !strongest->origin.empty();
  throw InputError((placed ? strongest->origin + ": " : "") +
                   WithDescriptions(message, [&](std::string_view key) {
                     return Find(key) != nullptr ? Describe(key) : StrCat("{", key, "}");
                   }));
}

void Options::Fail(const std::string& message) const {
  std::vector<std::string_view> keys;
  WithDescriptions(message, [&](std::string_view key) {
    if (const Option* const option = Find(key)) keys.push_back(option->key);
    return std::string();
  });
  Fail(keys, message);
}

void Options::Derive(std::string_view key, const OptionValue& value, std::string_view because) {
  LS_CHECK(Get(key).initial.index() == value.index(), "Derive: ", key, " is ",
           TypeWithArticle(Get(key).initial));
  Apply({{Find(key), value, Get(because).source, Get(because).origin}});
}

std::optional<int> Options::Start(int argc, const char* const* argv) {
  return Start(std::vector<std::string>(argv + std::min(argc, 1), argv + argc));
}

std::optional<int> Options::Start(const std::vector<std::string>& arguments) {
  try {
    Parse(arguments, ProcessEnvironment());
  } catch (const InputError& error) {
    std::cerr << program_.name << ": " << error.what() << '\n';
    return 2;
  }
  for (const std::string& warning : warnings_)
    std::cerr << program_.name << ": warning: " << warning << '\n';
  if (help_) {
    std::cout << (page_ ? Page() : Help(TerminalColumns()));
  } else if (version_) {
    std::cout << program_.name << " of Lockstep " LOCKSTEP_VERSION "\n";
  } else if (print_config_) {
    std::cout << Dump();
  } else {
    return std::nullopt;
  }
  CheckOutput();
  return 0;
}

}  // namespace lockstep::models
