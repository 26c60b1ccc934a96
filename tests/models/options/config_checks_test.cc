// Options that contradict each other, or do nothing without another.
#include "models/options/config_checks.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <limits>

#include "core/io/file.h"
#include "tests/models/parsed_run.h"
#include "tests/models/temp_folder.h"

namespace lockstep::models {
namespace {

using testing::HasSubstr;

TEST(ConfigChecks, HeadsDivideTheWidth) {
  EXPECT_EQ(ErrorOf({"--model.n_embd=130"}),
            "command line: model.n_embd = 130 (command line) is not a multiple of model.n_head = 4 "
            "(default): use model.n_embd = 128 or 132, or model.n_head = 2");
  EXPECT_EQ(ErrorOf({"--model.n_head=200"}),
            "command line: model.n_embd = 128 (default) is not a multiple of model.n_head = 200 "
            "(command line): use model.n_embd = 200, or model.n_head = 128");
  EXPECT_EQ(
      test::MessageOf<InputError>([] { RunConfigFromToml("[model]\nn_embd = 126\n", "c.toml"); }),
      "c.toml:2:10: model.n_embd = 126 (file) is not a multiple of model.n_head = 4 "
      "(default): use model.n_embd = 124 or 128, or model.n_head = 3");
  // An odd head dimension only matters to rotary embeddings.
  EXPECT_EQ(ErrorOf({"--model.n_embd=20"}), "no error");
  // Unless heads have a width of their own.
  EXPECT_EQ(ErrorOf({"--model.n_embd=130", "--model.head_dim=9"}), "no error");
  EXPECT_EQ(ErrorOf({"--model.n_embd=130", "--model.head_dim=9", "--model.position=rope"}),
            "command line: model.head_dim = 9 (command line) is odd, but rope rotates pairs: use "
            "model.head_dim = 10, or model.position = \"learned\"");
}

TEST(ConfigChecks, KeyHeadsDivideHeads) {
  EXPECT_EQ(ErrorOf({"--model.n_kv_head=3"}),
            "command line: model.n_head = 4 (default) is not a multiple of model.n_kv_head = 3 "
            "(command line): use model.n_kv_head = 2, or model.n_head = 6");
  EXPECT_EQ(ErrorOf({"--model.n_kv_head=8"}),
            "command line: model.n_head = 4 (default) is not a multiple of model.n_kv_head = 8 "
            "(command line): use model.n_kv_head = 4, or model.n_head = 8");
  for (const std::string heads : {"0", "1", "2", "4"})
    EXPECT_EQ(ErrorOf({"--model.n_kv_head=" + heads}), "no error");
}

TEST(ConfigChecks, Experts) {
  EXPECT_EQ(ErrorOf({"--model.router=sigmoid"}),
            "command line: model.router = \"sigmoid\" (command line) does nothing without "
            "model.n_expert = 8: use model.n_expert = 8, or model.router = \"softmax\"");
  EXPECT_THAT(ErrorOf({"--model.n_expert=4", "--model.bias_rate=0.1"}),
              HasSubstr("does nothing without model.router = \"sigmoid\""));
  EXPECT_THAT(ErrorOf({"--model.n_expert=4", "--model.router=sigmoid", "--model.balance_loss=0.1"}),
              HasSubstr("does nothing without model.router = \"softmax\""));
  EXPECT_THAT(ErrorOf({"--model.n_expert=4", "--model.shared_gate"}),
              HasSubstr("does nothing without model.n_shared_expert = 1"));
  EXPECT_EQ(ErrorOf({"--model.n_expert=4", "--model.n_expert_used=5"}),
            "command line: model.n_expert_used = 5 (command line) is more than model.n_expert = 4 "
            "(command line): use model.n_expert_used = 4 at most");
  EXPECT_THAT(ErrorOf({"--model.n_expert=4", "--model.n_dense=4"}),
              HasSubstr("leaves no layer of model.n_layer = 4 (default) to experts"));
  EXPECT_EQ(ErrorOf({"--model.n_expert=4", "--model.n_expert_used=4", "--model.z_loss=0.01"}),
            "no error");
}

TEST(ConfigChecks, TheClockDecidesTheSteps) {
  const ParsedRun run({"--train.time_budget=1h30m"});
  EXPECT_TRUE(run.config.train.is_open());
  EXPECT_EQ(run.config.optim.schedule, "wsd");
  const std::string time = "--train.time_budget=10m";
  EXPECT_EQ(ErrorOf({time, "--train.steps=100"}),
            "command line: train.time_budget = \"10m\" (command line) and train.steps = 100 "
            "(command line) contradict each other, since the clock decides that: leave one of them "
            "out");
  for (const std::string other :
       {"--train.epochs=2", "--optim.decay_steps=50", "--optim.decay_start=50"}) {
    EXPECT_THAT(ErrorOf({time, other}), HasSubstr("contradict each other")) << other;
  }
  for (const std::string other : {"--optim.schedule=cosine", "--optim.schedule=constant",
                                  "--optim.weight_decay_schedule=linear"}) {
    EXPECT_THAT(ErrorOf({time, other}), HasSubstr("use " + other.substr(2, other.find('=') - 2)));
  }
  EXPECT_THAT(ErrorOf({"--optim.decay_start=50"}),
              HasSubstr("does nothing without optim.schedule = \"wsd\""));
  EXPECT_THAT(ErrorOf({"--optim.schedule=wsd", "--optim.decay_start=50", "--train.steps=50"}),
              HasSubstr("use optim.decay_start = 40, or leave it out"));
}

// What has settled the steps stays in the file; stronger sources ask anew.
TEST(ConfigChecks, WhatTheClockHasSettled) {
  RunConfig settled = ParsedRun({"--train.time_budget=10m", "--optim.warmup=20"}).config;
  EXPECT_TRUE(RunConfigFromToml(ToToml(settled), "c.toml").train.is_open());
  for (const int64_t steps : {1000, 1234}) {  // one of them is the default
    SettleSteps(800, steps, &settled);
    const std::string toml = ToToml(settled);
    const RunConfig read = RunConfigFromToml(toml, "c.toml");
    EXPECT_FALSE(read.train.is_open());
    EXPECT_EQ(read.train.steps, steps);
    EXPECT_EQ(read.optim.decay_start, 800);
    EXPECT_EQ(read.train.time_budget, "10m");
    EXPECT_EQ(ToToml(read), toml);
  }
  const test::TempFolder folder("settled");
  const std::string file = folder.Path("c.toml");
  WriteFileAtomically(file, ToToml(settled));
  const ParsedRun longer({file, "--train.time_budget=20m"});
  EXPECT_TRUE(longer.config.train.is_open());
  EXPECT_EQ(longer.config.optim.decay_start, 0);
  const ParsedRun fixed({file, "--train.steps=2000"});
  EXPECT_EQ(fixed.config.train.time_budget, "");
  EXPECT_EQ(fixed.config.train.steps, 2000);
  EXPECT_EQ(fixed.config.optim.decay_start, 0);
}

// Setting an option that has no effect is a mistake.
TEST(ConfigChecks, RopeOptionsNeedRope) {
  EXPECT_EQ(ErrorOf({"--model.rope_theta=500"}),
            "command line: model.rope_theta = 500.0 (command line) does nothing without "
            "model.position = \"rope\": use model.position = \"rope\", or model.rope_theta = "
            "10000.0");
  EXPECT_THAT(ErrorOf({"--model.rope_scaling=linear"}),
              HasSubstr("does nothing without model.position = \"rope\""));
  EXPECT_THAT(ErrorOf({"--model.position=rope", "--model.rope_factor=2"}),
              HasSubstr("does nothing without model.rope_scaling = \"linear\" or \"llama3\""));
  for (const std::string option : {"rope_low=0.5", "rope_high=8", "rope_original_length=7"}) {
    EXPECT_THAT(
        ErrorOf({"--model.position=rope", "--model.rope_scaling=linear", "--model." + option}),
        HasSubstr("does nothing without model.rope_scaling = \"llama3\""));
    EXPECT_EQ(
        ErrorOf({"--model.position=rope", "--model.rope_scaling=llama3", "--model." + option}),
        "no error");
  }
  EXPECT_EQ(ErrorOf({"--model.position=rope", "--model.rope_scaling=llama3", "--model.rope_low=4"}),
            "command line: model.rope_low = 4.0 (command line) is not below model.rope_high = 4.0 "
            "(default): Llama 3 has model.rope_low = 1 and model.rope_high = 4");
  EXPECT_EQ(ErrorOf({"--model.position=rope", "--model.n_embd=20"}),
            "command line: model.n_embd = 20 (command line) and model.n_head = 4 (default) make "
            "heads of 5, but rope rotates pairs and needs an even size: use model.n_embd = 24, or "
            "model.position = \"learned\"");
  // The weights decide.
  EXPECT_EQ(ErrorOf({"--init_from=llama", "--model.rope_theta=500"}), "no error");
}

TEST(ConfigChecks, OptionsOfOnePrecision) {
  EXPECT_THAT(ErrorOf({"--train.loss_scale=1024"}),
              HasSubstr("does nothing without train.precision = \"fp16\""));
  EXPECT_THAT(ErrorOf({"--train.loss_scale_every=100", "--train.precision=bf16"}),
              HasSubstr("does nothing without train.precision = \"fp16\""));
  EXPECT_EQ(ErrorOf({"--train.loss_scale=1024", "--train.precision=fp16"}), "no error");
  EXPECT_THAT(ErrorOf({"--train.loss_scale=1000", "--train.precision=fp16"}),
              HasSubstr("is not a power of two, and would round gradients: use train.loss_scale = "
                        "512"));
  for (const std::string precision : {"fp32", "fp16"}) {
    EXPECT_THAT(ErrorOf({"--optim.master_weights=false", "--train.precision=" + precision}),
                HasSubstr("use train.precision = \"bf16\", or optim.master_weights = true"));
  }
  EXPECT_EQ(ErrorOf({"--optim.master_weights=false", "--train.precision=bf16"}), "no error");
  EXPECT_THAT(ErrorOf({"--train.grad_dtype=bf16"}),
              HasSubstr("does nothing without train.precision = \"bf16\""));
  EXPECT_THAT(
      ErrorOf({"--train.grad_dtype=bf16", "--train.precision=bf16", "--dist.reduction=ordered"}),
      HasSubstr("does nothing without dist.reduction = \"fast\""));
  EXPECT_EQ(ErrorOf({"--train.grad_dtype=bf16", "--train.precision=bf16"}), "no error");
}

TEST(ConfigChecks, SgdWithoutMomentumKeepsNoState) {
  const std::vector<std::string> bf16 = {"--optim.name=sgd", "--optim.state_dtype=bf16"};
  EXPECT_EQ(ErrorOf(bf16), "no error");
  EXPECT_EQ(ErrorOf({bf16[0], bf16[1], "--optim.momentum=0"}),
            "command line: optim.state_dtype = \"bf16\" (command line) does nothing without "
            "optim.momentum above 0: use optim.momentum above 0, or optim.state_dtype = \"fp32\"");
  EXPECT_EQ(ErrorOf({bf16[1], "--optim.momentum=0"}), "no error");  // of AdamW
}

TEST(ConfigChecks, OptionsOfSomeOptimizers) {
  EXPECT_EQ(ErrorOf({"--optim.muon_split=true"}),
            "command line: optim.muon_split = true (command line) does nothing without optim.name "
            "= \"muon\": use optim.name = \"muon\", or optim.muon_split = false");
  for (const std::string option :
       {"muon_split=true", "muon_scale=original", "muon_dtype=bf16", "matrix_lr=0.02",
        "weight_decay_schedule=linear", "cautious_weight_decay=true"}) {
    EXPECT_EQ(ErrorOf({"--optim.name=muon", "--optim." + option}), "no error") << option;
  }
  for (const std::string option :
       {"--optim.weight_decay_schedule=linear", "--optim.cautious_weight_decay=true"}) {
    EXPECT_EQ(ErrorOf({option}), "no error");
    EXPECT_THAT(ErrorOf({option, "--optim.name=sgd"}),
                HasSubstr("does nothing without optim.name = \"adamw\" or \"muon\""));
  }
}

TEST(ConfigChecks, StepsOrEpochs) {
  const ParsedRun epochs({"--train.epochs=2"});
  EXPECT_EQ(epochs.config.train.steps, 0);
  EXPECT_EQ(epochs.options.Describe("train.steps"), "train.steps = 0 (command line)");
  const ParsedRun over_preset({"--model.preset=shakespeare-char", "--train.epochs=0.5"});
  EXPECT_EQ(over_preset.config.train.steps, 0);
  EXPECT_EQ(over_preset.config.train.epochs, 0.5);
  const ParsedRun steps({"--train.steps=200"});
  EXPECT_EQ(steps.config.train.epochs, 0);
  EXPECT_EQ(ErrorOf({"--train.epochs=2", "--train.steps=10"}),
            "command line: train.steps = 10 (command line) and train.epochs = 2.0 (command line) "
            "contradict each other: keep one of them and set the other to 0");
  EXPECT_EQ(ErrorOf({"--train.steps=0"}),
            "command line: train.steps, train.epochs and train.tokens_per_parameter are all 0: set "
            "one of them, such as train.steps = 1000");
  const ParsedRun ratio({"--train.tokens_per_parameter=8"});
  EXPECT_EQ(ratio.config.train.steps, 0);
  EXPECT_THAT(ErrorOf({"--train.tokens_per_parameter=8", "--train.epochs=2"}),
              HasSubstr("contradict each other"));
}

TEST(ConfigChecks, StepsToTrace) {
  EXPECT_EQ(ParsedRun({"--log.trace=3:5"}).config.log.trace, "3:5");
  EXPECT_EQ(ErrorOf({"--log.trace=7"}),
            "command line: --log.trace=7: must be first:last, as in 7:7");
  EXPECT_EQ(ErrorOf({"--log.trace=5:3"}),
            "command line: --log.trace=5:3: the last step is before the first: write 3:5");
  EXPECT_EQ(ErrorOf({"--log.trace=990:1010"}),
            "command line: log.trace = \"990:1010\" (command line) reaches past train.steps = 1000 "
            "(default): write log.trace = \"990:1000\"");
}

TEST(ConfigChecks, StepsWhoseOperationsAreTraced) {
  EXPECT_EQ(ParsedRun({"--log.ops=3:world#7"}).config.log.ops, "3:world#7");
  EXPECT_EQ(
      ErrorOf({"--log.ops=0"}),
      "command line: --log.ops=0: must be a step, counted from 1, as in 100, or a step and an "
      "event, as in 100:17");
  EXPECT_THAT(ErrorOf({"--log.ops=7:"}), HasSubstr("as in 100:17"));
  EXPECT_EQ(ErrorOf({"--log.ops=1001:17"}),
            "command line: log.ops = \"1001:17\" (command line) is past train.steps = 1000 "
            "(default): write log.ops = \"1000\"");
  EXPECT_EQ(ErrorOf({"--log.ops=1001", "--train.epochs=2"}), "no error");
  EXPECT_THAT(ErrorOf({"--log.ops=3:modules", "--train.objective=dpo", "--lora.rank=2"}),
              HasSubstr("write log.ops = \"3\""));
}

TEST(ConfigChecks, LearningRates) {
  EXPECT_EQ(ErrorOf({"--model.preset=shakespeare-char", "--optim.lr=1e-5"}),
            "command line: optim.min_lr = 1e-4 (preset) is above optim.lr = 1e-5 (command line): "
            "use optim.min_lr = 1e-6, a tenth, or 0");
  EXPECT_EQ(ErrorOf({"--optim.warmup=200", "--optim.decay_steps=150"}),
            "command line: optim.warmup = 200 (command line) is longer than optim.decay_steps = "
            "150 (command line): use optim.warmup = 150 at most, or optim.decay_steps = 0, the "
            "whole run");
}

// Options of some sections are added in turn.
TEST(ConfigChecks, AnUnknownSectionIsToldTheOthersOnce) {
  EXPECT_EQ(test::MessageOf<InputError>([] { RunConfigFromToml("[quantum]", "c.toml"); }),
            "c.toml:1:2: unknown section [quantum]; there are model, data, train, optim, lora, "
            "dpo, eval, "
            "checkpoint, parallel, virtual, dist, log");
}

TEST(ConfigChecks, ConfigurationsOfProgramsGetTheSameChecks) {
  RunConfig config;
  config.optim.lr = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(Validate(config), InputError);
  config = RunConfig();
  config.model.n_head = 3;
  EXPECT_THROW(Validate(config), InputError);
  config = RunConfig();
  config.train.epochs = 1;  // and steps
  EXPECT_THROW(Validate(config), InputError);
  config = RunConfig();
  config.model.n_head = 0;
  EXPECT_THROW(Validate(config), InputError);
}

}  // namespace
}  // namespace lockstep::models
