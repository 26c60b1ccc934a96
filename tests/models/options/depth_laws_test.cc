// --depth=N: what follows from it.
#include "models/options/depth_laws.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "tests/models/options/options_program.h"
#include "tests/models/parsed_run.h"

namespace lockstep::models {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

std::string Depth(int64_t depth) { return "--depth=" + std::to_string(depth); }

TEST(DepthLaws, EachDepthIsAValidRunThatItsFileRepeats) {
  for (int64_t depth = 1; depth <= kMaxDepth; ++depth) {
    const ParsedRun run({Depth(depth)});
    Validate(run.config);
    EXPECT_THAT(run.options.warnings(), IsEmpty()) << depth;
    const ModelOptions& m = run.config.model;
    EXPECT_EQ(m.n_layer, depth);
    EXPECT_EQ(m.n_embd, m.n_head * HeadWidthOfDepth(depth));
    EXPECT_EQ(m.n_embd % 32, 0);  // tensor cores take multiples of 8 and 16
    EXPECT_EQ(run.config.train.global_batch_size % run.config.train.batch_size, 0);
    EXPECT_EQ(MicroBatches(run.config.train, 1) * run.config.train.batch_size * m.block_size,
              BatchOfTokens(kTokensPerParameter * BlockParameters(depth, m.n_embd)));
    // A run's config.toml has no laws but their results.
    const RunConfig again = RunConfigFromToml(ToToml(run.config), "config.toml");
    EXPECT_THAT(Difference(run.config, again), IsEmpty()) << depth;
    EXPECT_THAT(again.written, ElementsAre("depth"));
  }
}

TEST(DepthLaws, AreMonotone) {
  for (int64_t depth = 1; depth < kMaxDepth; ++depth) {
    const RunConfig a = ParsedRun({Depth(depth)}).config, b = ParsedRun({Depth(depth + 1)}).config;
    EXPECT_LE(a.model.n_embd, b.model.n_embd);
    EXPECT_LT(BlockParameters(depth, a.model.n_embd), BlockParameters(depth + 1, b.model.n_embd));
    EXPECT_LE(a.model.block_size, b.model.block_size);
    EXPECT_LE(a.train.global_batch_size * a.model.block_size,
              b.train.global_batch_size * b.model.block_size);
    EXPECT_GE(a.optim.lr, b.optim.lr);
    EXPECT_GE(a.optim.matrix_lr, b.optim.matrix_lr);
    EXPECT_GE(a.optim.embedding_lr, b.optim.embedding_lr);
    EXPECT_GE(a.optim.unembedding_lr, b.optim.unembedding_lr);
  }
}

TEST(DepthLaws, HoldWhatWasTunedAtDepthFour) {
  const RunConfig c = ParsedRun({"--depth=4", "--train.tokens_per_parameter=0.2"}).config;
  EXPECT_EQ(c.model.n_embd, 128);
  EXPECT_EQ(c.model.n_head, 4);
  EXPECT_EQ(c.model.block_size, 64);
  EXPECT_EQ(c.train.global_batch_size, 16);  // 12 in between
  EXPECT_EQ(c.optim.lr, 4e-3);
  EXPECT_EQ(c.optim.matrix_lr, 0.04);
  EXPECT_EQ(c.optim.embedding_lr, 1e-2);
  EXPECT_EQ(c.optim.unembedding_lr, 4e-3);
  EXPECT_EQ(c.model.activation, "swiglu");
}

TEST(DepthLaws, HoldNanochatsDepthTwelveAndTwentySix) {
  const RunConfig c = ParsedRun({"--depth=12"}).config;
  EXPECT_EQ(c.model.n_embd, 768);
  EXPECT_EQ(c.model.n_head, 6);
  EXPECT_EQ(c.model.block_size, 2048);
  EXPECT_EQ(c.model.activation, "relu2");
  EXPECT_EQ(c.train.global_batch_size * 2048, 1 << 19);
  EXPECT_EQ(c.optim.matrix_lr, 0.02);
  EXPECT_EQ(c.optim.weight_decay, 0.2);
  const RunConfig large = ParsedRun({"--depth=26"}).config;
  EXPECT_EQ(large.model.n_embd, 1664);
  EXPECT_EQ(large.train.global_batch_size * 2048, 1 << 20);
  EXPECT_NEAR(large.optim.weight_decay, 0.2 * 12 * 12 / (26 * 26), 0.002);
}

// The rates of embeddings and head transfer over widths by 1 / sqrt(width), muon's as it is.
TEST(DepthLaws, RatesAreThoseOfTheWidth) {
  const RunConfig narrow = ParsedRun({"--depth=4"}).config;
  const RunConfig wide = ParsedRun({"--depth=4", "--model.n_embd=512"}).config;
  EXPECT_EQ(wide.optim.embedding_lr, narrow.optim.embedding_lr / 2);
  EXPECT_EQ(wide.optim.unembedding_lr, narrow.optim.unembedding_lr / 2);
  EXPECT_EQ(wide.optim.matrix_lr, narrow.optim.matrix_lr);
}

TEST(DepthLaws, WhatIsGivenCountsAndTheRestFollowsIt) {
  const RunConfig base = ParsedRun({"--depth=6"}).config;
  const RunConfig context = ParsedRun({"--depth=6", "--model.block_size=64"}).config;
  EXPECT_EQ(context.train.global_batch_size * 64,
            base.train.global_batch_size * base.model.block_size);
  const RunConfig micro = ParsedRun({"--depth=6", "--train.batch_size=12"}).config;
  EXPECT_EQ(micro.train.batch_size, 12);
  EXPECT_EQ(micro.train.global_batch_size % 12, 0);
  const RunConfig accum =
      ParsedRun({"--depth=6", "--train.batch_size=8", "--train.grad_accum=3"}).config;
  EXPECT_EQ(accum.train.global_batch_size, 0);
  EXPECT_EQ(MicroBatches(accum.train, 2), 6);
  const RunConfig steps = ParsedRun({"--depth=6", "--train.steps=70"}).config;
  EXPECT_EQ(steps.train.steps, 70);
  EXPECT_EQ(steps.train.tokens_per_parameter, 0);
  const RunConfig epochs = ParsedRun({"--depth=6", "--train.epochs=2"}).config;
  EXPECT_EQ(epochs.train.steps, 0);
  EXPECT_EQ(epochs.train.tokens_per_parameter, 0);
  const RunConfig heads = ParsedRun({"--depth=6", "--model.n_embd=200"}).config;
  EXPECT_EQ(heads.model.n_embd % heads.model.n_head, 0);
}

// Nothing follows that would do nothing, or contradict what is given.
TEST(DepthLaws, OfATimeTheClockDecidesTheLength) {
  const ParsedRun run({"--depth=6", "--train.time_budget=10m"});
  EXPECT_TRUE(run.config.train.is_open());
  EXPECT_EQ(run.config.train.tokens_per_parameter, 0);
  EXPECT_EQ(run.config.optim.weight_decay_schedule, "constant");
  EXPECT_THAT(run.options.DescribeDial(),
              AllOf(Not(HasSubstr("train.steps")), Not(HasSubstr("weight_decay_schedule"))));
}

TEST(DepthLaws, EachOptionCanBeGiven) {
  for (const int64_t depth : {4, 12}) {
    for (const char* given : {"optim.name=adamw",
                              "optim.name=lion",
                              "optim.name=sgd",
                              "optim.schedule=cosine",
                              "model.norm=layer_norm",
                              "model.position=learned",
                              "model.tie_embeddings=true",
                              "model.window=0",
                              "model.window=64",
                              "model.head_dim=48",
                              "model.n_layer=3",
                              "model.n_embd=96",
                              "model.n_head=2",
                              "train.global_batch_size=509",
                              "train.grad_accum=2",
                              "train.global_batch_size=0",
                              "train.tokens_per_parameter=0.001",
                              "optim.warmup=7",
                              "optim.muon_scale=match_rms_adamw",
                              "model.n_expert=4",
                              "data.order=sequential"}) {
      EXPECT_EQ(ErrorOf({Depth(depth), StrCat("--", given)}), "no error") << depth;
    }
  }
  EXPECT_EQ(
      ErrorOf({"--depth=4", "--model.preset=gpt2"}),
      "command line: depth = 4 (command line) and model.preset = \"gpt2\" (command line) both "
      "decide the model and how it is trained: leave one of them out");
  EXPECT_THAT(ErrorOf({"--model.depth=4"}), HasSubstr("model.n_layer"));
}

TEST(DepthLaws, AllDepthsDecideTheSameOptions) {
  const auto keys = [](int64_t depth) {
    std::set<std::string> keys;
    for (const Following& f : FollowDepth(depth, [](auto) { return std::nullopt; })) {
      EXPECT_TRUE(keys.insert(f.key).second) << f.key;
    }
    return keys;
  };
  for (int64_t depth = 2; depth <= kMaxDepth; ++depth) EXPECT_EQ(keys(depth), keys(1));
}

TEST(DepthLaws, AnotherDepthThanTheFilesReplacesWhatFollowed) {
  RunConfig config;
  Options first{{.name = "train_gpt", .summary = ""}};
  AddRunOptions(first, config);
  first.Parse({"--depth=6", "--optim.lr=0.001"});
  std::string text = first.Dump();
  EXPECT_THAT(text.substr(0, text.find("[default]")),
              AllOf(HasSubstr("depth = 6"), Not(HasSubstr("n_layer"))));
  const std::string file = TempFile("depth.toml", text);
  EXPECT_THAT(Difference(ParsedRun({file}).config, config), IsEmpty());
  EXPECT_THAT(Difference(ParsedRun({file, "--depth=8"}).config,
                         ParsedRun({"--depth=8", "--optim.lr=0.001"}).config),
              IsEmpty());
  EXPECT_EQ(ParsedRun({file, "--depth=0"}).config.model.n_layer, 6);  // as its file says
  // As if another version had other laws: the file counts.
  const std::string law = "n_embd = 256", before = "n_embd = 320";
  text.replace(text.find(law), law.size(), before);
  const ParsedRun older({TempFile("older.toml", text)});
  EXPECT_EQ(older.config.model.n_embd, 320);
  EXPECT_EQ(older.config.optim.embedding_lr, config.optim.embedding_lr);
  EXPECT_THAT(older.config.written, ElementsAre("depth", "model.n_embd", "optim.lr"));
}

TEST(DepthLaws, EachValueIsToldWithItsReason) {
  const ParsedRun run({"--depth=6", "--train.steps=70"});
  EXPECT_THAT(run.options.DescribeDial(),
              AllOf(HasSubstr("model.n_embd = 256  # follows from depth = 6: 32 for each layer"),
                    HasSubstr("model.norm = \"rms_norm\", model.position = \"rope\", "),
                    Not(HasSubstr("train.steps"))));
  EXPECT_THAT(run.options.Dump(), HasSubstr("  # follows from depth = 6: the depth itself\n"));
  EXPECT_EQ(ParsedRun({}).options.DescribeDial(), "");
}

}  // namespace
}  // namespace lockstep::models
