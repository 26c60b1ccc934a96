// One registry of options feeds the TOML file, the environment, the command line, --help and the
// dump of the resolved configuration. Any program can use it:
//
//   struct { int64_t steps = 100; double lr = 1e-3; } config;
//   Options options({.name = "my_trainer", .summary = "Trains my model."});
//   options.Add("train.steps", &config.steps, {.min = 1, .doc = "updates to make"});
//   options.Add("optim.lr", &config.lr, {.above = 0, .doc = "peak learning rate"});
//   if (const auto exit_code = options.Start(argc, argv)) return *exit_code;
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/system/environment.h"

namespace lockstep::models {

// Where a value came from. A later one overrides an earlier one.
enum class OptionSource { kDefault, kPreset, kDial, kFile, kEnvironment, kCommandLine };
std::string_view Name(OptionSource source);  // "default", ..., "command line"

// The value of an option that may be given several times: --stop=a --stop=b, stop = ["a", "b"].
using TextList = std::vector<std::string>;
using OptionValue = std::variant<bool, int64_t, double, std::string, TextList>;

// Everything about an option but its key, type and default.
struct OptionSpec {
  // Bounds of a number: min and max are allowed values, above and below are not.
  std::optional<double> min{}, above{}, max{}, below{};
  // The words a string may be; empty: any.
  std::vector<std::string> choices{};
  // Returns why a string can't be used and what to write instead, or "". Runs before choices, and
  // for each string of a list.
  std::function<std::string(const std::string&)> check{};
  // For a string that was true or false in earlier versions: the words that false and true stand
  // for where they are still written.
  std::vector<std::string> formerly{};
  // Its names in other programs, used only to suggest the right key.
  std::vector<std::string> aliases{};
  // True if the option affects where, how fast or how verbosely a program runs, but its numbers at
  // most by rounding: runs that differ only in such options count as the same run. A run that
  // promises bits compares the options that decide them (parallel.*, virtual.*) itself
  // (models/checkpoint/run_folder.cc).
  bool operational = false;
  // Whether machines may have different values: a path, or what matters only to the main rank.
  bool of_machine = false;
  // For --help: what it does, its unit, the meaning of special values. No capital, no full stop.
  std::string doc{};
};

// A named set of values, as TOML text. It may set any option but the one that selects it.
struct Preset {
  std::string name, doc, toml;
};

// A value that follows from a dial, and why, in a few words.
struct Following {
  std::string key;
  OptionValue value;
  std::string reason;
};
// The text with describe("optim.lr") for each "{optim.lr}"; what else stands in braces stays.
std::string WithDescriptions(std::string_view text,
                             const std::function<std::string(std::string_view key)>& describe);

// What the user wrote of an option, if anything.
using Given = std::function<std::optional<OptionValue>(std::string_view key)>;
// All that follows from the position of a dial. What was given can have other values follow; it
// is not overridden.
using DialLaws = std::function<std::vector<Following>(int64_t position, const Given& given)>;

struct ProgramInfo {
  std::string name;        // "train_gpt"
  std::string summary;     // a sentence: "Trains a GPT ..."
  std::string example{};   // a command line worth copying, the first thing --help shows
  bool takes_file = true;  // the argument without dashes is a TOML file
  std::string environment_prefix = "LOCKSTEP";
};

// User errors are InputErrors that name the file, line and column, the variable or the argument,
// and the fix. A registry that contradicts itself is an ArgumentError.
class Options {
 public:
  explicit Options(ProgramInfo program);
  Options(const Options&) = delete;
  Options& operator=(const Options&) = delete;

  // Binds "section.key" (lower case, digits, '_'; the section may have several parts or none) to a
  // variable that outlives the registry. The variable's value at this call is the default.
  void Add(std::string key, bool* value, OptionSpec spec);
  void Add(std::string key, int64_t* value, OptionSpec spec);
  void Add(std::string key, double* value, OptionSpec spec);
  void Add(std::string key, std::string* value, OptionSpec spec);
  // On the command line each use adds a string, and together they replace what weaker sources say.
  void Add(std::string key, TextList* value, OptionSpec spec);
  // A switch such as --dry_run: on the command line only, not part of the configuration.
  void AddFlag(std::string name, bool* value, std::string doc);
  // An option that earlier versions had. The value `meaning` stands for today's only behaviour and
  // is ignored, so that configurations of those versions still load; any other value is an error
  // that ends with `instead`, such as "write train.steps = N". The option is neither listed nor
  // dumped.
  void AddRemoved(std::string key, OptionValue meaning, std::string instead);
  // A string option that names one of the presets, or none when empty. At most one per registry.
  void AddPresets(std::string key, std::string* value, std::vector<Preset> presets,
                  OptionSpec spec);
  // An integer that values of other options follow from, as they do from a preset; 0: none. At most
  // one per registry.
  void AddDial(std::string key, int64_t* value, DialLaws laws, OptionSpec spec);
  // Runs after all values are in: checks that span options, and derived values.
  void OnResolve(std::function<void(Options&)> hook);

  // For main(): parses argv and the process's environment. An exit code means that the program is
  // done: --help, --version or --print_config was answered on stdout (0), or the error is on
  // stderr (2). Warnings go to stderr.
  std::optional<int> Start(int argc, const char* const* argv);
  std::optional<int> Start(const std::vector<std::string>& arguments);  // without argv[0]

  // Sets every bound variable: defaults < preset < file < environment < command line.
  // `arguments` are without argv[0]. Returns at once on --help or --version.
  void Parse(const std::vector<std::string>& arguments, const Environment& environment = {});
  // The same from nothing but the text of a TOML file; `name` is what errors call it.
  void ParseToml(std::string_view text, const std::string& name);
  // Checks the values that the variables hold now, wherever they came from.
  void Validate();

  bool help() const { return help_; }
  bool version() const { return version_; }
  bool print_config() const { return print_config_; }
  // The TOML file of the command line, or "".
  const std::string& file() const { return file_; }
  // About values that are valid, but probably not intended.
  const std::vector<std::string>& warnings() const { return warnings_; }

  // --help, wrapped to `columns`.
  std::string Help(int columns) const;
  // --help=markdown: a page with a table for each section.
  std::string Page() const;
  // A TOML file that gives the same configuration when read back, optionally with the source of
  // each value as a comment. What the user wrote stands first; all else stands below [default], and
  // when it is read back, only what has another value there than by default or by the preset counts
  // as written.
  std::string Dump(bool sources = true) const;

  // For one option; an unknown key is an ArgumentError.
  OptionSource source(std::string_view key) const;
  bool IsWritten(std::string_view key) const;  // by the user, not by default or by a preset
  std::set<std::string> Written() const;
  // For values that the variables held before they were bound: the user wrote these.
  void MarkWritten(const std::set<std::string>& keys);
  OptionValue value(std::string_view key) const;
  std::string Describe(std::string_view key) const;  // "optim.lr = 0.001 (command line)"
  // The values that follow from the dial, a line for each reason; "" if none do.
  std::string DescribeDial() const;

  // For hooks. Fail throws an InputError that starts with the origin of the strongest of `keys`; in
  // the message, "{optim.lr}" stands for Describe("optim.lr"). Without keys, they are those.
  [[noreturn]] void Fail(const std::string& message) const;
  [[noreturn]] void Fail(const std::vector<std::string_view>& keys,
                         const std::string& message) const;
  void Warn(std::string message) { warnings_.push_back(std::move(message)); }
  // Sets `key` as a consequence of the option `because`, whose source it takes over.
  void Derive(std::string_view key, const OptionValue& value, std::string_view because);

 private:
  friend std::vector<struct OptionDifference> Compare(const Options& a, const Options& b);

  struct Option {
    std::string key;
    std::variant<bool*, int64_t*, double*, std::string*, TextList*> target;
    OptionSpec spec;
    OptionValue initial{};
    bool flag = false;
    std::string instead{};   // if removed: what to write
    std::string variable{};  // in the environment
    OptionSource source = OptionSource::kDefault;
    // "config.toml:3:9", "preset gpt2", "follows from depth = 6: ...", ... "" for a default
    std::string origin{};
    // Whether it is part of the configuration.
    bool listed() const { return !flag && instead.empty(); }
  };
  struct Assignment {
    Option* option;
    OptionValue value;
    OptionSource source;  // kDefault: of a file's [default]
    std::string origin;
  };
  using Assignments = std::vector<Assignment>;

  void Insert(Option option);
  const Option* Find(std::string_view key) const;
  Option* Find(std::string_view key);
  const Option& Get(std::string_view key) const;
  bool IsSection(std::string_view name) const;
  std::vector<std::string> Sections() const;  // in order; "" for keys that have none
  std::string EnvironmentName(std::string_view key) const;
  Assignments ReadToml(std::string_view text, const std::string& name, OptionSource source);
  Assignments ReadEnvironment(const Environment& environment);
  void RefuseVariable(const std::string& variable);
  Assignments ReadArguments(const std::vector<std::string>& arguments);
  Assignment FromText(Option& option, const std::string& text, OptionSource source,
                      const std::string& spelled);
  // Throws if the value does not fit; `spelled` is how the user wrote it, with its origin.
  static void Check(const Option& option, const OptionValue& value, const std::string& spelled);
  // ": did you mean ...?" with the nearest keys, spelled as in `source`, or how to list them all.
  std::string Suggest(std::string_view key, OptionSource source) const;
  std::string SuggestSection(std::string_view section) const;
  void Resolve(const Assignments& file, const Assignments& environment,
               const Assignments& command_line);
  // The value of `key` by its initial value and these sources.
  template <class T>
  T ValueIn(std::string_view key, std::initializer_list<const Assignments*> sources) const;
  std::string DumpPart(bool written, bool sources) const;
  void Apply(const Assignments& assignments);
  void ApplyDefaults(const Assignments& file, bool over_preset);
  void ApplyDial(int64_t position);
  void Reset();

  ProgramInfo program_;
  std::map<std::string, size_t, std::less<>> index_;
  std::vector<Option> options_;
  std::deque<OptionValue> removed_;  // the variables of removed options
  std::string preset_key_;
  std::vector<Preset> presets_;
  std::string dial_key_;
  DialLaws laws_;
  std::vector<std::function<void(Options&)>> hooks_;
  std::vector<std::string> warnings_;
  std::string file_;
  bool help_ = false, page_ = false, version_ = false, print_config_ = false;
};

// An option's values in two registries, as TOML; "(absent)" where one of them lacks it.
struct OptionDifference {
  std::string key, a, b;
  bool operational = false, of_machine = false;
};
// Every option, and those whose values differ.
std::vector<OptionDifference> Compare(const Options& a, const Options& b);
std::vector<OptionDifference> Difference(const Options& a, const Options& b);
// One "  key: a -> b" per line, for messages.
std::string ToString(const std::vector<OptionDifference>& differences);

// A value as TOML writes it: shortest digits that read back equal, strings quoted and escaped.
std::string ToToml(const OptionValue& value);

}  // namespace lockstep::models
