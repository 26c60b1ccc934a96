// A program with options, to be parsed in tests.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "models/options/options.h"
#include "tests/message_of.h"

namespace lockstep::models {

// A program with an option of each type.
struct Program {
  int64_t seed = 7;
  int64_t steps = 1000;
  double lr = 0.001;
  bool bias = false;
  std::string schedule = "cosine";
  std::string preset;
  std::string out = "out";
  bool dry_run = false;
  Options options{{.name = "prog", .summary = "does things", .example = "prog --optim.lr=1"}};

  Program() {
    options.Add("seed", &seed, {.min = 0, .doc = "of random numbers"});
    options.Add("out_dir", &out, {.operational = true, .doc = "where to"});
    options.AddPresets("model.preset", &preset,
                       {{"small", "a small one", "model.bias = true\noptim.lr = 0.5\n"},
                        {"large", "a large one", "train.steps = 5000\n[optim]\nlr = 0.25\n"}},
                       {.doc = "where to start"});
    options.Add("model.bias", &bias, {.doc = "biases"});
    options.Add("train.steps", &steps,
                {.min = 0, .max = 1e6, .aliases = {"max_iters"}, .doc = "updates"});
    options.Add("optim.lr", &lr,
                {.above = 0, .below = 2, .aliases = {"learning_rate"}, .doc = "learning rate"});
    options.Add("optim.schedule", &schedule,
                {.choices = {"cosine", "linear"}, .doc = "shape of the decay"});
    options.AddFlag("dry_run", &dry_run, "train nothing");
  }

  std::string ErrorOf(const std::vector<std::string>& arguments, const Environment& env = {}) {
    return test::MessageOf<InputError>([&] { options.Parse(arguments, env); });
  }
  std::string TomlErrorOf(const std::string& text) {
    return test::MessageOf<InputError>([&] { options.ParseToml(text, "c.toml"); });
  }
};

inline std::string TempFile(const std::string& name, const std::string& text) {
  const std::string path = testing::TempDir() + "/" + name;
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

}  // namespace lockstep::models
