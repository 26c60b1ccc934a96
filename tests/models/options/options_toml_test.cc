// Options from a TOML file.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "tests/models/options/options_program.h"

namespace lockstep::models {
namespace {

using testing::StartsWith;

TEST(OptionsToml, SectionsAndDottedKeys) {
  Program program;
  program.options.ParseToml(
      "seed = 3\nmodel.bias = true\n[optim]\nlr = 1  # an integer will do\n"
      "schedule = 'linear'\n[train]\nsteps = 1_000\n",
      "c.toml");
  EXPECT_EQ(program.seed, 3);
  EXPECT_TRUE(program.bias);
  EXPECT_EQ(program.lr, 1.0);
  EXPECT_EQ(program.schedule, "linear");
  EXPECT_EQ(program.steps, 1000);
  EXPECT_EQ(program.options.source("train.steps"), OptionSource::kFile);
}

TEST(OptionsToml, ErrorsHaveFileLineAndColumn) {
  Program program;
  EXPECT_EQ(program.TomlErrorOf("\n[train]\nsteps = \"100\"\n"),
            "c.toml:3:9: train.steps = \"100\" is a string, expected an integer: write "
            "train.steps = 100");
  EXPECT_EQ(program.TomlErrorOf("train.steps = \"all\"\n"),
            "c.toml:1:15: train.steps = \"all\" is a string, expected an integer, such as "
            "train.steps = 1000");
  EXPECT_EQ(program.TomlErrorOf("train.steps = 1e3"),
            "c.toml:1:15: train.steps = 1000.0 is a number, expected an integer: write "
            "train.steps = 1000");
  EXPECT_EQ(program.TomlErrorOf("train.steps = 0.5"),
            "c.toml:1:15: train.steps = 0.5 is a number, expected an integer, such as "
            "train.steps = 1000");
  EXPECT_EQ(program.TomlErrorOf("out_dir = 3"),
            "c.toml:1:11: out_dir = 3 is an integer, expected a string: write out_dir = \"3\"");
  EXPECT_EQ(program.TomlErrorOf("model.bias = 1"),
            "c.toml:1:14: model.bias = 1 is an integer, expected true or false, such as "
            "model.bias = false");
  EXPECT_EQ(program.TomlErrorOf("optim.lr = true"),
            "c.toml:1:12: optim.lr = true is true or false, expected a number, such as "
            "optim.lr = 0.001");
  EXPECT_EQ(program.TomlErrorOf("optim.lr = [1, 2]"),
            "c.toml:1:12: optim.lr is a list, expected a number, such as optim.lr = 0.001");
  EXPECT_EQ(program.TomlErrorOf("out_dir = 2024-01-01"),
            "c.toml:1:11: out_dir is a date, expected a string, such as out_dir = \"out\"");
  EXPECT_EQ(program.TomlErrorOf("[train.steps]\nx = 1"),
            "c.toml:1:8: train.steps is a section, expected an integer: write train.steps = 1000");
  EXPECT_EQ(program.TomlErrorOf("train = 5"),
            "c.toml:1:9: a value for the section train: did you mean train.steps?");
  EXPECT_EQ(program.TomlErrorOf("[train]\n  steps = -1"),
            "c.toml:2:11: train.steps = -1 is out of range: it must be at least 0 and at most "
            "1000000");
  EXPECT_EQ(program.TomlErrorOf("[optim]\nlr = nan"),
            "c.toml:2:6: optim.lr = nan: must be a finite number");
  EXPECT_EQ(program.TomlErrorOf("[optim]\nlr = -inf"),
            "c.toml:2:6: optim.lr = -inf: must be a finite number");
  EXPECT_EQ(program.TomlErrorOf("[optim]\nschedule = 'cosinus'"),
            "c.toml:2:12: optim.schedule = \"cosinus\": did you mean cosine? It must be one of "
            "cosine, linear");
  EXPECT_EQ(program.TomlErrorOf("[optim]\nlearning_rate = 1"),
            "c.toml:2:17: unknown key optim.learning_rate: did you mean optim.lr?");
  EXPECT_EQ(program.TomlErrorOf("[train]\nlr = 1"),
            "c.toml:2:6: unknown key train.lr: did you mean optim.lr?");
  EXPECT_EQ(program.TomlErrorOf("[optimizer]\nlr = 1"),
            "c.toml:1:2: unknown section [optimizer]: did you mean [optim]?");
  EXPECT_EQ(program.TomlErrorOf("[quantum]"),
            "c.toml:1:2: unknown section [quantum]; there are model, train, optim");
  EXPECT_EQ(program.TomlErrorOf("\"train.steps\" = 5"),
            "c.toml:1:17: unknown key \"train.steps\": did you mean train.steps?");
  EXPECT_EQ(program.TomlErrorOf("dry_run = true"),
            "c.toml:1:11: unknown key dry_run; prog --help lists the options");
  EXPECT_EQ(program.TomlErrorOf("out_dir = \"a\\u0000b\""),
            "c.toml:1:11: out_dir = \"a\\u0000b\": must be UTF-8 text without NUL characters");
  // The library's message, with our position.
  EXPECT_THAT(program.TomlErrorOf("seed = 1\nseed = 2\n"), StartsWith("c.toml:2:"));
  EXPECT_THAT(program.TomlErrorOf("seed = \n"), StartsWith("c.toml:1:8: "));
  EXPECT_THAT(program.TomlErrorOf("seed = 99999999999999999999"), StartsWith("c.toml:1:"));
  EXPECT_THAT(program.TomlErrorOf("out_dir = \"\xff\xfe\""), StartsWith("c.toml:1:11: "));
  EXPECT_THAT(program.TomlErrorOf("seed = 1 # \xff"), StartsWith("c.toml:1:11: "));
  for (const std::string text : {"[=]", "[ .a]", "[[\n", "[\x01]", "[+1"})
    EXPECT_EQ(program.TomlErrorOf("seed = 1\n" + text),
              "c.toml:2:1: a bracket must be followed by a name, as in [train]");
}

TEST(OptionsToml, TheFirstOfSeveralErrorsIsReported) {
  Program program;
  EXPECT_THAT(program.TomlErrorOf("[train]\nz = 1\na = 1\n[model]\nb = 1\n"),
              StartsWith("c.toml:2:5: unknown key train.z"));
}

// toml++ 3.3 has undefined behaviour for these characters wherever it looks for white space.
TEST(OptionsToml, CharactersOutsideOfAsciiAreTextInQuotesAndErrorsElsewhere) {
  Program program;
  for (const std::string c : {"\xc3\xa9", "\xd0\x96", "\xe3\x81\x82", "\xef\xbb\x80"}) {
    for (const std::string& text : std::vector<std::string>{
             "out_dir = " + c, c + " = 1", "seed = 1 " + c, "[a" + c + "]", "[" + c + "]",
             "out_dir = \"\" " + c, "seed = 1--'''x='" + c + "'''", "seed = 1='" + c + "'"})
      EXPECT_THAT(program.TomlErrorOf(text), StartsWith("c.toml:1:")) << text;
    for (const std::string& text : std::vector<std::string>{
             "out_dir = '" + c + "'  # " + c, "out_dir = \"" + c + "\"",
             "out_dir = \"\"\"\\\n  " + c + "\"\"\"", "\xef\xbb\xbfout_dir = '''" + c + "'''"}) {
      EXPECT_EQ(program.TomlErrorOf(text), "no error") << text;
      EXPECT_EQ(program.out, c);
    }
  }
}

TEST(OptionsToml, AHostileDepthIsAnErrorNotAStackOverflow) {
  Program program;
  std::string key = "a";
  for (int i = 0; i < 200000; ++i) key += ".a";
  EXPECT_THAT(program.TomlErrorOf("\n" + key + " = 1"),
              StartsWith("c.toml:2:4002: more than 2000"));
  EXPECT_THAT(program.TomlErrorOf("[" + key + "]"), StartsWith("c.toml:1:4003: more than 2000"));
  key.resize(4001);  // the greatest allowed depth
  EXPECT_THAT(program.TomlErrorOf(key + " = 1"), StartsWith("c.toml:1:1: unknown section [a]"));
  EXPECT_THAT(program.TomlErrorOf("seed = " + std::string(100000, '[')), StartsWith("c.toml:1:"));
  EXPECT_EQ(program.TomlErrorOf("# " + std::string(10000, '.') + "\nseed = 1"), "no error");
}

}  // namespace
}  // namespace lockstep::models
