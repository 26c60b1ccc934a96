#include "models/options/options.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <limits>
#include <sstream>

#include "core/error.h"
#include "lockstep/version.h"
#include "models/options/invocation.h"
#include "tests/message_of.h"
#include "tests/models/options/options_program.h"

namespace lockstep::models {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// ---- Precedence ----

// Every subset of the four sources gives lr its own value: the strongest source must win.
TEST(OptionsPrecedence, TheStrongestSourceWins) {
  const std::string file = TempFile("precedence.toml", "optim.lr = 0.3\n");
  const std::string empty = TempFile("empty.toml", "");
  for (int sources = 0; sources < 16; ++sources) {
    Program program;
    const bool preset = sources & 1, in_file = sources & 2, env = sources & 4, line = sources & 8;
    std::vector<std::string> arguments = {in_file ? file : empty};
    if (preset) arguments.push_back("--model.preset=small");
    if (line) arguments.push_back("--optim.lr=0.1");
    program.options.Parse(arguments,
                          env ? Environment{{"LOCKSTEP_OPTIM_LR", "0.2"}} : Environment{});
    const double expected = line ? 0.1 : env ? 0.2 : in_file ? 0.3 : preset ? 0.5 : 0.001;
    const OptionSource source = line      ? OptionSource::kCommandLine
                                : env     ? OptionSource::kEnvironment
                                : in_file ? OptionSource::kFile
                                : preset  ? OptionSource::kPreset
                                          : OptionSource::kDefault;
    EXPECT_EQ(program.lr, expected) << "sources " << sources;
    EXPECT_EQ(program.options.source("optim.lr"), source) << "sources " << sources;
    EXPECT_EQ(program.bias, preset) << "sources " << sources;
  }
}

TEST(OptionsPrecedence, ThePresetIsChosenByTheStrongestSource) {
  const std::string file = TempFile("preset.toml", "model.preset = 'small'\n");
  Program program;
  program.options.Parse({file});
  EXPECT_EQ(program.lr, 0.5);
  EXPECT_TRUE(program.bias);
  program.options.Parse({file}, {{"LOCKSTEP_MODEL_PRESET", "large"}});
  EXPECT_EQ(program.lr, 0.25);
  EXPECT_FALSE(program.bias);  // the other preset has no effect
  program.options.Parse({file, "--model.preset="}, {{"LOCKSTEP_MODEL_PRESET", "large"}});
  EXPECT_EQ(program.lr, 0.001);
}

TEST(OptionsPrecedence, ParsingAgainStartsFromTheDefaults) {
  Program program;
  program.options.Parse({"--train.steps=3", "--out_dir=x"});
  program.options.Parse({"--seed=8"});
  EXPECT_EQ(program.steps, 1000);
  EXPECT_EQ(program.out, "out");
  EXPECT_EQ(program.seed, 8);
}

// ---- Command line ----

TEST(OptionsCommandLine, WaysToWriteAValue) {
  Program program;
  program.options.Parse({"--train.steps", "12", "--optim.lr=1e-4", "--model.bias", "--out_dir",
                         "a b", "--dry-run", "--seed=+5"});
  EXPECT_EQ(program.steps, 12);
  EXPECT_EQ(program.lr, 1e-4);
  EXPECT_TRUE(program.bias);
  EXPECT_EQ(program.out, "a b");
  EXPECT_TRUE(program.dry_run);
  EXPECT_EQ(program.seed, 5);
  program.options.Parse(
      {"--model.bias=false", "--train.steps=1", "--train.steps=2", "--out_dir=a=b"});
  EXPECT_FALSE(program.bias);
  EXPECT_EQ(program.steps, 2);  // the last one
  EXPECT_EQ(program.out, "a=b");
  EXPECT_FALSE(program.dry_run);
}

TEST(OptionsCommandLine, HelpAndVersionAnswerWhateverElseIsThere) {
  Program program;
  program.options.Parse({"--no.such.thing", "-h"});
  EXPECT_TRUE(program.options.help());
  program.options.Parse({"--version", "missing.toml"});
  EXPECT_TRUE(program.options.version());
  EXPECT_FALSE(program.options.help());
}

// ---- Options that may be given several times ----

struct ListProgram {
  TextList stop = {"initial"};
  Options options{{.name = "prog", .summary = "does things"}};

  ListProgram() {
    options.Add(
        "stop", &stop,
        {.check = [](const std::string& s) -> std::string { return s == "bad" ? "no" : ""; },
         .doc = "where to stop"});
  }
  std::string ErrorOf(const std::function<void()>& parse) {
    try {
      parse();
    } catch (const InputError& error) {
      return error.what();
    }
    return "no error";
  }
};

TEST(OptionsList, CollectsFromTheStrongestSource) {
  ListProgram program;
  program.options.Parse({});
  EXPECT_THAT(program.stop, ElementsAre("initial"));
  program.options.Parse({"--stop=a", "--stop", "b,c", "--stop="},
                        {{"LOCKSTEP_STOP", "environment"}});
  EXPECT_THAT(program.stop, ElementsAre("a", "b,c", ""));
  program.options.Parse({}, {{"LOCKSTEP_STOP", "environment"}});
  EXPECT_THAT(program.stop, ElementsAre("environment"));
  program.options.ParseToml("stop = ['x', \"y\\n\"]", "c.toml");
  EXPECT_THAT(program.stop, ElementsAre("x", "y\n"));
  program.options.ParseToml("stop = 'x'", "c.toml");
  EXPECT_THAT(program.stop, ElementsAre("x"));
  program.options.ParseToml("stop = []", "c.toml");
  EXPECT_THAT(program.stop, IsEmpty());
}

TEST(OptionsList, IsShownAndReadBack) {
  ListProgram program, again;
  program.options.Parse({"--stop=a\"", "--stop=b\n"});
  EXPECT_THAT(program.options.Dump(false), HasSubstr("stop = [\"a\\\"\", \"b\\n\"]\n"));
  again.options.ParseToml(program.options.Dump(), "dump");
  EXPECT_EQ(again.stop, program.stop);
  EXPECT_THAT(Difference(program.options, again.options), IsEmpty());
  EXPECT_THAT(program.options.Help(200),
              HasSubstr("--stop=TEXT                     where to stop; may be given several times "
                        "(default [\"initial\"])"));
}

TEST(OptionsList, Errors) {
  ListProgram program;
  const auto line = [&](const std::vector<std::string>& arguments) {
    return program.ErrorOf([&] { program.options.Parse(arguments); });
  };
  const auto toml = [&](const std::string& text) {
    return program.ErrorOf([&] { program.options.ParseToml(text, "c.toml"); });
  };
  EXPECT_EQ(line({"--stop=a", "--stop=bad"}), "command line: --stop=bad: no");
  EXPECT_EQ(line({"--stop=\xff"}),
            "command line: --stop=\xff: must be UTF-8 text without NUL characters");
  EXPECT_EQ(line({"--stop"}), "command line: --stop needs a value: write --stop=initial");
  EXPECT_EQ(toml("stop = ['a', 'bad']"), "c.toml:1:8: stop = [\"a\", \"bad\"]: no");
  EXPECT_EQ(toml("stop = ['a', 3]"),
            "c.toml:1:8: stop is a list, expected a list of strings, such as stop = "
            "[\"initial\"]");
  EXPECT_EQ(toml("stop = 3"),
            "c.toml:1:8: stop = 3 is an integer, expected a list of strings, such as stop = "
            "[\"initial\"]");
  Program other;
  EXPECT_EQ(other.TomlErrorOf("out_dir = ['a']"),
            "c.toml:1:11: out_dir is a list, expected a string, such as out_dir = \"out\"");
}

TEST(OptionsCommandLine, Errors) {
  Program program;
  EXPECT_EQ(program.ErrorOf({"--optim.lrr=1"}),
            "command line: unknown option --optim.lrr: did you mean --optim.lr?");
  EXPECT_EQ(program.ErrorOf({"--lr=1"}),
            "command line: unknown option --lr: did you mean --optim.lr?");
  EXPECT_EQ(program.ErrorOf({"--train.lr", "1"}),
            "command line: unknown option --train.lr: did you mean --optim.lr?");
  EXPECT_EQ(program.ErrorOf({"--learning_rate=1"}),
            "command line: unknown option --learning_rate: did you mean --optim.lr?");
  EXPECT_EQ(program.ErrorOf({"-seed=1"}),
            "command line: unknown option -seed: did you mean --seed?");
  EXPECT_EQ(program.ErrorOf({"--dryrun"}),
            "command line: unknown option --dryrun: did you mean --dry_run?");
  EXPECT_EQ(program.ErrorOf({"--optim=1"}),
            "command line: unknown option --optim: did you mean --optim.lr or --optim.schedule?");
  EXPECT_EQ(program.ErrorOf({"--quantum_flux=1"}),
            "command line: unknown option --quantum_flux; prog --help lists the options");
  EXPECT_EQ(program.ErrorOf({"--"}),
            "command line: unknown option --; prog --help lists the options");
  EXPECT_EQ(program.ErrorOf({"--train.steps"}),
            "command line: --train.steps needs a value: write --train.steps=1000");
  EXPECT_EQ(program.ErrorOf({"--train.steps", "--model.bias"}),
            "command line: --train.steps needs a value: write --train.steps=1000");
  EXPECT_EQ(program.ErrorOf({"--model.bias", "a.toml"}),
            "command line: a.toml after --model.bias: write the TOML file first");
  EXPECT_EQ(program.ErrorOf({"--model.bias", "false"}),
            "command line: false after --model.bias: write --model.bias=false, or the TOML file "
            "first");
  EXPECT_EQ(program.ErrorOf({"--train.steps=abc"}),
            "command line: --train.steps=abc: expected an integer such as 1000");
  EXPECT_EQ(program.ErrorOf({"--train.steps=12x"}),
            "command line: --train.steps=12x: expected an integer such as 1000");
  EXPECT_EQ(program.ErrorOf({"--train.steps=1e3"}),
            "command line: --train.steps=1e3: expected an integer: write 1000");
  EXPECT_EQ(program.ErrorOf({"--train.steps=99999999999999999999"}),
            "command line: --train.steps=99999999999999999999: does not fit into 64 bits");
  EXPECT_EQ(program.ErrorOf({"--train.steps="}),
            "command line: --train.steps=: the value is empty, expected an integer");
  EXPECT_EQ(program.ErrorOf({"--train.steps=-5"}),
            "command line: --train.steps=-5 is out of range: it must be at least 0 and at most "
            "1000000");
  EXPECT_EQ(
      program.ErrorOf({"--train.steps=1000001"}),
      "command line: --train.steps=1000001 is out of range: it must be at least 0 and at most "
      "1000000");
  EXPECT_EQ(program.ErrorOf({"--optim.lr=0"}),
            "command line: --optim.lr=0 is out of range: it must be above 0 and below 2");
  EXPECT_EQ(program.ErrorOf({"--optim.lr=2"}),
            "command line: --optim.lr=2 is out of range: it must be above 0 and below 2");
  EXPECT_EQ(program.ErrorOf({"--optim.lr=fast"}),
            "command line: --optim.lr=fast: expected a number such as 0.001");
  for (const std::string bad : {"nan", "inf", "-inf"})
    EXPECT_EQ(program.ErrorOf({"--optim.lr=" + bad}),
              "command line: --optim.lr=" + bad + ": must be a finite number");
  EXPECT_EQ(program.ErrorOf({"--optim.lr=1e999"}),
            "command line: --optim.lr=1e999: is too large or too small for a 64-bit number");
  EXPECT_EQ(program.ErrorOf({"--model.bias=maybe"}),
            "command line: --model.bias=maybe: expected true or false");
  EXPECT_EQ(program.ErrorOf({"--optim.schedule=cosin"}),
            "command line: --optim.schedule=cosin: did you mean cosine? It must be one of cosine, "
            "linear");
  EXPECT_EQ(program.ErrorOf({"--optim.schedule=step"}),
            "command line: --optim.schedule=step: must be one of cosine, linear");
  EXPECT_EQ(
      program.ErrorOf({"--model.preset=smal"}),
      "command line: --model.preset=smal: did you mean small? It must be one of small, large");
  EXPECT_EQ(program.ErrorOf({"--out_dir=\xff"}),
            "command line: --out_dir=\xff: must be UTF-8 text without NUL characters");
  EXPECT_EQ(program.ErrorOf({"a.toml", "b.toml"}),
            "command line: unexpected argument 'b.toml' after the file a.toml: options look like "
            "--section.key=value, see --help");
  EXPECT_EQ(program.ErrorOf({""}), "command line: the name of the TOML file is empty");
  EXPECT_EQ(program.ErrorOf({"/no/such/file.toml"}),
            "cannot read the configuration /no/such/file.toml: No such file or directory");
  EXPECT_THAT(program.ErrorOf({testing::TempDir()}), HasSubstr("is it a folder?"));
  EXPECT_THAT(program.ErrorOf({"/dev/zero"}), HasSubstr("it is larger than 1048576 bytes"));
}

TEST(OptionsCommandLine, AProgramWithoutFileTakesNone) {
  Options options({.name = "p", .summary = "", .takes_file = false});
  try {
    options.Parse({"x.toml"});
    FAIL();
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(),
                 "command line: unexpected argument 'x.toml': options look like "
                 "--section.key=value, see --help");
  }
}

// ---- Environment ----

TEST(OptionsEnvironment, SetsWhatItNames) {
  Program program;
  program.options.Parse({}, {{"LOCKSTEP_TRAIN_STEPS", "5"},
                             {"LOCKSTEP_MODEL_BIAS", "1"},
                             {"LOCKSTEP_OUT_DIR", ""},
                             {"LOCKSTEPS", "x"},
                             {"LOCKSTEP_GPT2_DIR", "/x"},
                             {"TRAIN_STEPS", "9"}});
  EXPECT_EQ(program.steps, 5);
  EXPECT_TRUE(program.bias);
  EXPECT_EQ(program.out, "");
  EXPECT_THAT(program.options.warnings(), IsEmpty());
}

TEST(OptionsEnvironment, Errors) {
  Program program;
  EXPECT_EQ(program.ErrorOf({}, {{"LOCKSTEP_TRAIN_STEPS", "many"}}),
            "environment: LOCKSTEP_TRAIN_STEPS=many: expected an integer such as 1000");
  EXPECT_EQ(program.ErrorOf({}, {{"LOCKSTEP_TRAIN_STPES", "5"}}),
            "environment: unknown variable LOCKSTEP_TRAIN_STPES: did you mean "
            "LOCKSTEP_TRAIN_STEPS?");
  // A variable with none of the sections may belong to another program.
  EXPECT_EQ(program.ErrorOf({}, {{"LOCKSTEP_SEDE", "5"}, {"LOCKSTEP_DRY_RUN", "1"}}), "no error");
  EXPECT_THAT(
      program.options.warnings(),
      ElementsAre("environment: LOCKSTEP_SEDE is not an option and was ignored: did you mean "
                  "LOCKSTEP_SEED?"));
  EXPECT_FALSE(program.dry_run);  // switches are only for the command line
}

// ---- Dump, help, differences ----

TEST(OptionsDump, ReadsBackToTheSameConfiguration) {
  const std::vector<std::string> texts = {
      "",        "plain",        "quotes \" and \\",
      "a\nb\tc", "\x01\x1f\x7f", "gr\xc3\xbc\xc3\x9f \xf0\x9f\x9a\x80",
      "#'''"};
  const std::vector<double> numbers = {0.1, 1.0 / 3, 5e-324, 1e-8, 1.9999999999999998, 6e-4, 1};
  for (const std::string& text : texts) {
    for (const double number : numbers) {
      Program first, second;
      first.options.Parse({"--out_dir=" + text, "--optim.lr=" + ToToml(OptionValue(number)),
                           "--model.preset=large", "--model.bias"},
                          {{"LOCKSTEP_SEED", "9223372036854775807"}});
      ASSERT_EQ(first.lr, number);
      second.options.ParseToml(first.options.Dump(), "dump");
      EXPECT_EQ(second.out, text);
      EXPECT_EQ(second.lr, number);
      EXPECT_EQ(second.seed, std::numeric_limits<int64_t>::max());
      EXPECT_THAT(Difference(first.options, second.options), IsEmpty());
      EXPECT_EQ(first.options.Dump(false), second.options.Dump(false));
    }
  }
}

// A service named lockstep-train in the same namespace.
TEST(OptionsEnvironment, WhatKubernetesSaysOfAServiceIsNoOption) {
  Program program;
  program.options.Parse({}, {{"LOCKSTEP_TRAIN_SERVICE_HOST", "10.0.0.7"},
                             {"LOCKSTEP_TRAIN_SERVICE_PORT_HTTP", "80"},
                             {"LOCKSTEP_TRAIN_PORT", "tcp://10.0.0.7:80"},
                             {"LOCKSTEP_TRAIN_PORT_80_TCP_ADDR", "10.0.0.7"}});
  EXPECT_THAT(program.options.Written(), IsEmpty());
  EXPECT_THAT(program.ErrorOf({}, {{"LOCKSTEP_TRAIN_STEP", "7"}}),
              HasSubstr("LOCKSTEP_TRAIN_STEPS"));
}

TEST(OptionsDump, HasWhatWasWrittenFirstAndTheSourceOfEachValue) {
  const std::string file = TempFile("sources.toml", "[optim]\nschedule = 'linear'\n");
  Program program;
  program.options.Parse({file, "--model.preset=large", "--dry_run"}, {{"LOCKSTEP_SEED", "1"}});
  const std::string dump = program.options.Dump();
  const size_t rest = dump.find("[default]");
  ASSERT_NE(rest, std::string::npos);
  EXPECT_THAT(dump.substr(0, rest),
              AllOf(HasSubstr("seed = 1                          # environment\n"),
                    HasSubstr("[model]\npreset = \"large\"                  # command line\n"),
                    HasSubstr("[optim]\nschedule = \"linear\"               # file\n"),
                    Not(HasSubstr("\nlr = "))));
  EXPECT_THAT(dump.substr(rest),
              AllOf(HasSubstr("[default]\nout_dir = \"out\"                   # default\n"),
                    HasSubstr("[default.model]\nbias = false                      # default\n"),
                    HasSubstr("[default.train]\nsteps = 5000                      # preset\n"),
                    HasSubstr("[default.optim]\nlr = 0.25                         # preset\n")));
  Program again;
  again.options.ParseToml(dump, "dump.toml");
  EXPECT_EQ(again.options.Written(), program.options.Written());
  EXPECT_THAT(Difference(again.options, program.options), IsEmpty());
}

TEST(OptionsDump, WhatIsChangedBelowDefaultCountsAsWritten) {
  Program program;
  program.options.ParseToml(
      "[model]\npreset = 'large'\n[default]\nseed = 7\n[default.train]\n"
      "steps = 5000\n[default.optim]\nlr = 0.125\n",
      "c.toml");
  EXPECT_THAT(program.options.Written(), ElementsAre("model.preset", "optim.lr"));
  EXPECT_EQ(program.lr, 0.125);
  // Another preset replaces the values of the one that the file had.
  const std::string file = TempFile("preset.toml", program.options.Dump());
  Program other;
  other.options.Parse({file, "--model.preset=small"});
  EXPECT_TRUE(other.bias);
  EXPECT_EQ(other.lr, 0.125);
  EXPECT_THAT(other.TomlErrorOf("[default.train]\nstep = 3\n"),
              AllOf(HasSubstr("c.toml:2"), HasSubstr("train.steps")));
}

TEST(OptionsDump, EarlierVersionsWroteDefaultsAmongWhatWasAskedFor) {
  Program program;
  program.options.ParseToml(
      "# Configuration of prog, resolved: prog with this file does the same.\nseed = 7\n"
      "[train]\nsteps = 12\n[optim]\nlr = 0.001\n",
      "old.toml");
  EXPECT_THAT(program.options.Written(), ElementsAre("train.steps"));
  EXPECT_EQ(program.steps, 12);
}

TEST(OptionsHelp, NamesEveryOptionAndStaysWithinTheWidth) {
  Program program;
  for (const int columns : {50, 100}) {
    const std::string help = program.options.Help(columns);
    for (const std::string text :
         {"--seed=N", "--out_dir=TEXT", "--model.preset=TEXT", "--model.bias ", "--train.steps=N",
          "--optim.lr=X", "--optim.schedule=TEXT", "--dry_run", "--help", "--version",
          "--print_config", "Example: prog --optim.lr=1", "[optim]", "a small one", "(default",
          "1000)"})
      EXPECT_THAT(help, HasSubstr(text));
    std::istringstream lines(help);
    for (std::string line; std::getline(lines, line);)
      EXPECT_LE(static_cast<int>(line.size()), line.starts_with("Usage") ? 60 : columns) << line;
  }
}

TEST(OptionsPage, HasTypeDefaultRangeAndMeaningOfEachOption) {
  Program program;
  const std::string page = program.options.Page();
  for (const std::string text :
       {"# Options of prog\n", "## optim\n",
        "| `optim.lr` | a number | `0.001` | above 0 and below 2 | learning rate |\n",
        "| `optim.schedule` | a string | `\"cosine\"` | cosine, linear | shape of the decay |\n",
        "| `model.preset` | a string | `\"\"` | a preset, below | where to start |\n",
        "| `--dry_run` | train nothing |\n", "| `small` | a small one |\n"})
    EXPECT_THAT(page, HasSubstr(text));
  EXPECT_EQ(page.find("small, large"), std::string::npos);
}

TEST(OptionsDifference, ListsWhatDiffersAndWhatOneLacks) {
  Program a, b;
  int64_t extra = 1;
  b.options.Add("train.extra", &extra, {.doc = "more"});
  a.options.Parse({"--seed=1", "--out_dir=x"});
  b.options.Parse({"--optim.lr=0.5"});
  const std::vector<OptionDifference> differences = Difference(a.options, b.options);
  EXPECT_EQ(ToString(differences),
            "  seed: 1 -> 7\n  out_dir: \"x\" -> \"out\"\n  optim.lr: 0.001 -> 0.5\n"
            "  train.extra: (absent) -> 1\n");
  ASSERT_EQ(differences.size(), 4);
  EXPECT_FALSE(differences[0].operational);
  EXPECT_TRUE(differences[1].operational);
}

// ---- Hooks, validation, misuse ----

TEST(OptionsHooks, FailNamesThePlaceOfTheStrongestValue) {
  Program program;
  program.options.OnResolve([](Options& options) {
    options.Fail({"optim.lr", "train.steps"}, "{train.steps}");
  });
  EXPECT_EQ(program.ErrorOf({}), "train.steps = 1000 (default)");
  EXPECT_EQ(program.TomlErrorOf("optim.lr = 1"), "c.toml:1:12: train.steps = 1000 (default)");
  EXPECT_EQ(program.ErrorOf({"--model.preset=large"}), "preset large: train.steps = 5000 (preset)");
  EXPECT_EQ(program.ErrorOf({"--train.steps=5"}), "command line: train.steps = 5 (command line)");
}

TEST(OptionsHooks, FailDescribesTheOptionsInBraces) {
  Program program;
  program.options.OnResolve([](Options& options) {
    options.Fail("{optim.lr} and {train.steps}, not {no.option}, {A} or {");
  });
  EXPECT_EQ(program.ErrorOf({"--train.steps=5"}),
            "command line: optim.lr = 0.001 (default) and train.steps = 5 (command line), not "
            "{no.option}, {A} or {");
}

TEST(OptionsHooks, DerivedValuesTakeOverTheSource) {
  Program program;
  program.options.OnResolve([&](Options& options) {
    if (program.bias) options.Derive("train.steps", int64_t{1}, "model.bias");
  });
  program.options.Parse({"--model.bias"});
  EXPECT_EQ(program.options.Describe("train.steps"), "train.steps = 1 (command line)");
  EXPECT_THROW(program.options.Derive("train.steps", 1.5, "model.bias"), ArgumentError);
}

TEST(OptionsValidate, ChecksValuesThatNoSourceSet) {
  Program program;
  program.options.Validate();
  program.lr = kInfinity;
  EXPECT_THROW(program.options.Validate(), InputError);
  program.lr = 3;
  EXPECT_THROW(program.options.Validate(), InputError);
  program.lr = 1;
  program.schedule = "step";
  EXPECT_THROW(program.options.Validate(), InputError);
}

TEST(OptionsMisuse, ARegistryThatContradictsItselfIsRefused) {
  Program program;
  int64_t value = 0;
  EXPECT_THROW(program.options.Add("seed", &value, {}), ArgumentError);
  EXPECT_THROW(program.options.Add("help", &value, {}), ArgumentError);
  EXPECT_THROW(program.options.Add("optim", &value, {}), ArgumentError);
  EXPECT_THROW(program.options.Add("seed.x", &value, {}), ArgumentError);
  EXPECT_THROW(program.options.Add("optim_lr", &value, {}), ArgumentError);  // same variable
  for (const std::string key : {"", ".", "a.", ".a", "a..b", "A", "a-b", "a b"})
    EXPECT_THROW(program.options.Add(key, &value, {}), ArgumentError) << key;
  std::string preset;
  EXPECT_THROW(program.options.AddPresets("p", &preset, {}, {}), ArgumentError);
  EXPECT_THROW(program.options.value("no.such"), ArgumentError);
}

TEST(OptionsStart, OtherProgramsAreRunLikeThisOne) {
  const std::string sample = "//models:sample_gpt", serve = "//tools:serve";
  EXPECT_EQ(CommandOf(sample, {{"BUILD_WORKSPACE_DIRECTORY", "/w"}}, "/cache/train_gpt"),
            "bazel run -c opt //models:sample_gpt --");
  EXPECT_EQ(CommandOf(serve, {{"BUILD_WORKSPACE_DIRECTORY", "/w"}}, "/cache/train_gpt"),
            "bazel run -c opt //tools:serve --");
  EXPECT_EQ(CommandOf(sample, {}, "lockstep/bin/train_gpt"), "lockstep/bin/sample_gpt");
  EXPECT_EQ(CommandOf(sample, {}, "train_gpt"), "sample_gpt");
  EXPECT_EQ(CommandOf(serve, {}, "bazel-bin/models/sample_gpt"), "bazel-bin/tools/serve");
  EXPECT_EQ(CommandOf(sample, {}, "tools/evaluate"), "models/sample_gpt");
  EXPECT_EQ(CommandOf(sample, {}, "mytools/evaluate"), "mytools/sample_gpt");
}

TEST(OptionsStart, ExitCodes) {
  const auto start = [](std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), "prog");
    Program program;
    return program.options.Start(static_cast<int>(arguments.size()), arguments.data());
  };
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  EXPECT_EQ(start({"--help"}), 0);
  EXPECT_EQ(start({"--help=markdown"}), 0);
  EXPECT_EQ(start({"--version"}), 0);
  EXPECT_EQ(start({"--print_config", "--seed=2"}), 0);
  EXPECT_EQ(start({"--sed=2"}), 2);
  EXPECT_EQ(start({"--seed=2"}), std::nullopt);
  EXPECT_EQ(start({}), std::nullopt);
  const std::string out = testing::internal::GetCapturedStdout();
  EXPECT_THAT(out, HasSubstr("prog: does things"));
  EXPECT_THAT(out, HasSubstr("prog of Lockstep " LOCKSTEP_VERSION));
  EXPECT_THAT(out, HasSubstr("seed = 2                          # command line"));
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "prog: command line: unknown option --sed: did you mean --seed?\n");
}

// Earlier versions wrote removed options into every configuration.
TEST(Removed, IsIgnoredIfItMeansWhatIsAlwaysDoneElseSaysWhatToWrite) {
  int64_t steps = 10;
  Options options({.name = "train", .summary = ""});
  options.Add("train.steps", &steps, {.doc = "updates to make"});
  options.AddRemoved("train.fused", true, "updates are always fused: leave train.fused out");
  options.AddRemoved("optim.decay", 0.5, "write optim.gamma");
  options.ParseToml("[train]\nsteps = 3\nfused = true\n[optim]\ndecay = 0.5\n", "old.toml");
  EXPECT_EQ(steps, 3);
  const auto toml = [&](const char* text) {
    return test::MessageOf<InputError>([&] { options.ParseToml(text, "old.toml"); });
  };
  EXPECT_EQ(toml("[train]\nfused = false\n"),
            "old.toml:2:9: train.fused = false: this option was removed: updates are always fused: "
            "leave train.fused out");
  EXPECT_EQ(test::MessageOf<InputError>([&] { options.Parse({"--optim.decay=0.1"}); }),
            "command line: --optim.decay=0.1: this option was removed: write optim.gamma");
  EXPECT_EQ(test::MessageOf<InputError>([&] {
              options.Parse({}, {{"LOCKSTEP_TRAIN_FUSED", "false"}});
            }),
            "environment: LOCKSTEP_TRAIN_FUSED=false: this option was removed: updates are always "
            "fused: leave train.fused out");
  // It is never suggested, and no new configuration has it.
  options.Parse({});
  EXPECT_EQ(options.Dump(false).find("fused"), std::string::npos);
  EXPECT_EQ(options.Help(100).find("fused"), std::string::npos);
  EXPECT_EQ(test::MessageOf<InputError>([&] { options.Parse({"--train.fuse=1"}); }).find("fused"),
            std::string::npos);
  Options newer({.name = "train", .summary = ""});
  newer.Add("train.steps", &steps, {.doc = "updates to make"});
  EXPECT_TRUE(Difference(options, newer).empty());
}

}  // namespace
}  // namespace lockstep::models
