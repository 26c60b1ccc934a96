// Options that contradict each other, or do nothing without another.
#include "models/options/config_checks.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <limits>

#include "core/io/file.h"
#include "data/prepare/prepare.h"
#include "data/tokenizer/byte_tokenizer.h"
#include "models/gpt/hf/hf_format.h"
#include "models/train/run_checks.h"
#include "models/train/run_optimizer.h"
#include "models/train/run_setup.h"
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

// The error for options that go with weights of this shape.
std::string ErrorWithWeights(const GptConfig& shape, std::vector<std::string> arguments) {
  const test::TempFolder weights("weights");
  WriteFileAtomically(weights.Path("config.json"), ToHfConfig(shape));
  arguments.push_back("--init_from=" + weights.path());
  ParsedRun run(arguments);
  return test::MessageOf<InputError>([&] { PrepareShape(run.options, run.config, kCpu, 1); });
}

// What the weights have no use for does not train on silently.
TEST(ConfigChecks, ExpertsOfWeights) {
  const GptConfig dense{.vocab_size = 11, .block_size = 8, .n_layer = 1, .n_head = 2, .n_embd = 8};
  GptConfig softmax = dense;
  softmax.mixture = {.n_expert = 4, .n_expert_used = 2, .n_inner = 6};
  GptConfig sigmoid = softmax;
  sigmoid.mixture.router.score = RouterScore::kSigmoid;
  for (const std::string option :
       {"model.n_expert_used=1", "model.router=sigmoid", "model.z_loss=0.1",
        "model.balance_loss=0.1", "model.bias_rate=0.1", "model.n_dense=1"}) {
    EXPECT_THAT(ErrorWithWeights(dense, {"--" + option}),
                HasSubstr("leave " + option.substr(0, option.find('=')) + " out"));
  }
  EXPECT_THAT(ErrorWithWeights(dense, {"--model.n_shared_expert=1"}),
              testing::MatchesRegex("command line: model.n_shared_expert = 1 \\(command line\\) "
                                    "does nothing without experts, which the weights of .* do not "
                                    "have: leave model.n_shared_expert out"));
  EXPECT_THAT(ErrorWithWeights(softmax, {"--model.bias_rate=0.1"}),
              HasSubstr("does nothing without model.router = \"sigmoid\", which the weights of"));
  EXPECT_THAT(ErrorWithWeights(sigmoid, {"--model.balance_loss=0.1"}),
              HasSubstr("does nothing without model.router = \"softmax\" or \"softmax_all\""));
  for (const std::vector<std::string>& fitting :
       {std::vector<std::string>{}, {"--model.balance_loss=0.1", "--model.z_loss=0.1"}}) {
    EXPECT_EQ(ErrorWithWeights(softmax, fitting), "no error");
  }
  EXPECT_EQ(ErrorWithWeights(sigmoid, {"--model.bias_rate=0.1"}), "no error");
  EXPECT_EQ(ErrorWithWeights(dense, {"--model.balance_loss=0.01"}), "no error");  // the default
}

TEST(ConfigChecks, SharedExpertsOfWeightsAreWholeOnes) {
  GptConfig shape{.vocab_size = 11, .block_size = 8, .n_layer = 1, .n_head = 2, .n_embd = 8};
  shape.mixture = {.n_expert = 4, .n_expert_used = 2, .n_inner = 6, .n_shared = 9};
  EXPECT_EQ(ErrorWithWeights(shape, {}), "no error");
  EXPECT_THAT(ErrorWithWeights(shape, {"--model.n_shared_expert=1"}),
              HasSubstr("is 9 wide, no multiple of the 6 of an expert"));
  shape.mixture.n_shared = 12;
  EXPECT_EQ(ErrorWithWeights(shape, {"--model.n_shared_expert=2"}), "no error");
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
            "command line: train.steps and train.epochs are both 0: set one of them, such as "
            "train.steps = 1000");
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

TEST(ConfigChecks, MicroBatchesFollowFromTheGlobalBatchSize) {
  TrainOptions train;
  train.batch_size = 8;
  EXPECT_EQ(MicroBatches(train, 4), 4);
  train.grad_accum = 3;
  EXPECT_EQ(MicroBatches(train, 4), 12);
  train.global_batch_size = 96;
  EXPECT_EQ(MicroBatches(train, 4), 12);
  train.grad_accum = 0;
  for (const int64_t ranks : {1, 2, 5, 7, 12}) EXPECT_EQ(MicroBatches(train, ranks), 12);
  EXPECT_THROW(MicroBatches(train, 0), ArgumentError);
}

// What an error advises must work.
TEST(ConfigChecks, RanksWithoutAMicroBatch) {
  TrainOptions train;
  train.global_batch_size = 12;
  const auto error = [&](int64_t batch_size, int64_t ranks) {
    train.batch_size = batch_size;
    return test::MessageOf<InputError>([&] { MicroBatches(train, ranks); });
  };
  EXPECT_EQ(error(4, 4),
            "train.global_batch_size = 12 makes 3 micro-batches of train.batch_size = 4 for 4 "
            "ranks, each of which needs one: use train.global_batch_size = 16, or "
            "train.batch_size = 3, or at most 3 ranks");
  EXPECT_EQ(error(8, 2),
            "train.global_batch_size = 12 is not a multiple of train.batch_size = 8: "
            "use train.global_batch_size = 16, or train.batch_size = 6");
  EXPECT_EQ(error(1, 13),
            "train.global_batch_size = 12 is less than one sequence for each of 13 ranks: use at "
            "most 12 ranks, or train.global_batch_size = 13");
  for (const auto& [global, batch, ranks] :
       {std::tuple(16, 4, 4), std::tuple(12, 3, 4), std::tuple(12, 4, 3), std::tuple(16, 8, 2),
        std::tuple(12, 6, 2), std::tuple(12, 1, 12), std::tuple(13, 1, 13)}) {
    train.global_batch_size = global;
    train.batch_size = batch;
    EXPECT_EQ(MicroBatches(train, ranks), global / batch);
  }
}

TEST(ConfigChecks, BatchesThatDoNotFit) {
  EXPECT_EQ(ErrorOf({"--train.global_batch_size=100", "--train.batch_size=16"}),
            "command line: train.global_batch_size = 100 is not a multiple of train.batch_size = "
            "16: use train.global_batch_size = 96 or 112, or train.batch_size = 10");
  EXPECT_EQ(ErrorOf({"--train.global_batch_size=10", "--train.batch_size=16"}),
            "command line: train.global_batch_size = 10 is not a multiple of train.batch_size = "
            "16: use train.global_batch_size = 16, or train.batch_size = 10");
  EXPECT_EQ(
      ErrorOf({"--train.global_batch_size=64", "--train.batch_size=16", "--train.grad_accum=3"}),
      "command line: train.grad_accum = 3 contradicts train.global_batch_size = 64, which makes 4 "
      "micro-batches of train.batch_size = 16 for 1 rank: leave train.grad_accum out, or use "
      "train.global_batch_size = 48");
  // With 2 ranks these two agree, and the options do not know the number of ranks.
  const ParsedRun run(
      {"--train.global_batch_size=64", "--train.batch_size=16", "--train.grad_accum=2"});
  EXPECT_EQ(MicroBatches(run.config.train, 2), 4);
  EXPECT_THAT(test::MessageOf<InputError>([&] { MicroBatches(run.config.train, 3); }),
              HasSubstr("for 3 ranks: leave train.grad_accum out, or use "
                        "train.global_batch_size = 96"));
  // The stronger source wins.
  const ParsedRun over_preset({"--model.preset=gpt2", "--train.grad_accum=4"});
  EXPECT_EQ(over_preset.config.train.global_batch_size, 0);
  EXPECT_EQ(MicroBatches(over_preset.config.train, 8), 32);
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

// Of the run's steps, however they are given.
TEST(ConfigChecks, WarmupsThatFitTheRun) {
  const auto run = [](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--train.batch_size=16", "--model.block_size=64"});
    ParsedRun parsed(arguments);
    const RunSetup setup = PrepareRun(parsed.options, parsed.config, {}, kCpu, 1);
    return std::pair(setup, NoteOnWarmup(parsed.options, setup));
  };
  const auto warmup = [&](std::vector<std::string> arguments) {
    const auto [setup, note] = run(std::move(arguments));
    EXPECT_EQ(note, "");
    EXPECT_EQ(MakeSchedule(setup).options().warmup, setup.warmup);
    return setup.warmup;
  };
  EXPECT_EQ(warmup({"--train.steps=5000"}), 100);
  EXPECT_EQ(warmup({"--train.steps=1000"}), 100);
  EXPECT_EQ(warmup({"--train.steps=300"}), 30);
  EXPECT_EQ(warmup({"--train.steps=5"}), 0);
  EXPECT_EQ(warmup({"--train.steps=300", "--optim.decay_steps=50"}), 5);
  EXPECT_EQ(warmup({"--train.steps=300", "--optim.warmup=150"}), 150);
  const int64_t steps = run({"--train.steps=0", "--train.epochs=0.5"}).first.steps;
  ASSERT_GT(steps, 9);
  ASSERT_LT(steps, 1000);
  EXPECT_EQ(warmup({"--train.steps=0", "--train.epochs=0.5"}), steps / 10);
  EXPECT_EQ(run({"--train.steps=20", "--optim.warmup=11"}).second,
            "optim.warmup = 11 (command line) is more than half of the 20 steps of this run, which "
            "hardly learns before its learning rate has risen: leave it out for a tenth of them, "
            "or train longer");
  EXPECT_THAT(run({"--train.steps=0", "--train.epochs=0.5", "--optim.warmup=100000"}).second,
              HasSubstr(StrCat("more than half of the ", steps, " steps")));
}

// The chunk of the loss is one for all plans of a run: micro-batches and the parts of sequences
// decide it, where the user does not.
TEST(ConfigChecks, TheLossChunkFollowsFromTheRun) {
  const auto chunk = [](std::vector<std::string> arguments, int64_t ranks = 1) {
    for (const char* fixed : {"--model.vocab_size=50304", "--model.n_embd=768", "--model.n_layer=2",
                              "--model.n_head=8", "--model.block_size=1024"}) {
      arguments.emplace_back(fixed);
    }
    ParsedRun run(arguments);
    const RunSetup setup = PrepareShape(run.options, run.config, kCpu, ranks);
    EXPECT_EQ(setup.config.train.loss_chunk, setup.model.loss_chunk);
    return setup.model.loss_chunk;
  };
  const std::string batch = "--train.batch_size=64";
  EXPECT_EQ(chunk({"--train.batch_size=8"}), 4096);
  EXPECT_EQ(chunk({batch}), 16384);
  EXPECT_EQ(chunk({batch, "--train.loss_chunk=512"}), 512);
  EXPECT_EQ(chunk({batch, "--train.loss_chunk=0"}), 0);
  const std::string ordered = "--dist.reduction=ordered";
  for (const char* plan : {"--parallel.tp=2", "--parallel.pp=2", "--parallel.shard=full"}) {
    EXPECT_EQ(chunk({batch, ordered, plan, "--train.global_batch_size=256"}, 4), 16384) << plan;
  }
  for (const int64_t cp : {1, 2}) {
    EXPECT_EQ(chunk({batch, ordered, "--virtual.cp=2", StrCat("--parallel.cp=", cp)}, cp), 4096);
  }
}

TEST(ConfigChecks, CompressionExcludesTheOrderedReduction) {
  EXPECT_EQ(ParsedRun({"--dist.compress=bf16"}).config.dist.compress, "bf16");
  EXPECT_THAT(ErrorOf({"--dist.compress=bf16", "--dist.reduction=ordered"}),
              testing::AllOf(HasSubstr("dist.compress = \"bf16\""),
                             HasSubstr("dist.reduction = \"fast\"")));
}

// The error for options that these processes cannot train by together.
std::string ErrorOnRanks(int64_t processes, std::vector<std::string> arguments) {
  arguments.push_back("--model.vocab_size=96");
  ParsedRun run(arguments);
  return test::MessageOf<InputError>(
      [&] { PrepareShape(run.options, run.config, kCpu, processes); });
}

// Where no data-parallel ranks sum gradients, bf16 would not be sent.
TEST(ConfigChecks, CompressionNeedsRanksThatSumGradients) {
  const std::string bf16 = "--dist.compress=bf16";
  for (const char* plan : {"--parallel.pp=2", "--parallel.tp=2"}) {
    EXPECT_THAT(ErrorOnRanks(2, {bf16, plan}), HasSubstr("leave dist.compress out")) << plan;
    EXPECT_EQ(ErrorOnRanks(4, {bf16, plan}), "no error") << plan;
  }
  EXPECT_THAT(ErrorOnRanks(2, {bf16, "--parallel.cp=2", "--parallel.shard=full"}),
              HasSubstr("leave dist.compress out"));
  // These gradients are summed over the ranks of a sequence, too.
  EXPECT_EQ(ErrorOnRanks(2, {bf16, "--parallel.cp=2"}), "no error");
  EXPECT_EQ(ErrorOnRanks(2, {bf16}), "no error");
  // Sends nothing, and may go on with several.
  EXPECT_EQ(ErrorOnRanks(1, {bf16}), "no error");
}

// Nor would weights be sharded.
TEST(ConfigChecks, ShardsNeedDataRanks) {
  for (const char* plan : {"--parallel.pp=2", "--parallel.tp=2", "--parallel.cp=2"}) {
    EXPECT_THAT(
        ErrorOnRanks(2, {"--parallel.shard=full", plan}),
        testing::AllOf(HasSubstr("parallel.shard = \"full\""), HasSubstr("start 4 processes")))
        << plan;
    EXPECT_EQ(ErrorOnRanks(4, {"--parallel.shard=full", plan}), "no error") << plan;
  }
  EXPECT_EQ(ErrorOnRanks(1, {"--parallel.shard=full"}), "no error");  // may go on with several
}

// In the words of the command line.
TEST(ConfigChecks, AnOrderedSumThatShardsCannotMake) {
  const std::string error = ErrorOnRanks(
      3, {"--parallel.shard=full", "--train.grad_accum=2", "--dist.reduction=ordered"});
  EXPECT_THAT(error,
              testing::AllOf(HasSubstr("needs a power of two of these ranks"),
                             HasSubstr("parallel.shard=optimizer scatters once a step"),
                             HasSubstr("dist.reduction=fast"), testing::Not(HasSubstr("kWhole"))));
}

// Of chunks of sequences, products are not deferred.
TEST(ConfigChecks, SchedulesThatGainNothingAreNoted) {
  const auto note = [](const std::string& schedule, const std::string& cp) {
    ParsedRun run({"--model.vocab_size=96", "--parallel.pp=2", "--parallel.schedule=" + schedule,
                   "--train.grad_accum=4", cp});
    return NoteOnPlan(PrepareShape(run.options, run.config, kCpu, 4));
  };
  EXPECT_EQ(note("zb_h1", "--parallel.cp=1"), "");
  EXPECT_EQ(note("interleaved", "--parallel.cp=2"), "");
  EXPECT_THAT(note("zb_h1", "--parallel.cp=2"), HasSubstr("use \"1f1b\""));
  EXPECT_THAT(note("zbv", "--parallel.cp=2"), HasSubstr("use \"interleaved\""));
}

TEST(ConfigChecks, TensorParallelSizesThatDoNotDivideAreNamed) {
  EXPECT_EQ(ErrorOnRanks(4, {"--parallel.tp=4", "--model.block_size=10"}),
            "the 4 parts of virtual.tp (or parallel.tp) do not divide model.block_size = 10: use "
            "model.block_size = 12, or fewer parts");
  EXPECT_EQ(ErrorOnRanks(8, {"--parallel.tp=8"}),
            "parallel.tp = 8 does not divide the 4 heads (model.n_head): use a divisor of them");
  EXPECT_EQ(ErrorOnRanks(2, {"--parallel.tp=2", "--model.n_expert=5"}),
            "the 2 parts of virtual.tp (or parallel.tp) do not divide the 5 experts "
            "(model.n_expert): use a divisor of them");
  EXPECT_EQ(ErrorOnRanks(4, {"--parallel.tp=4"}), "no error");
}

// The ranks of a sequence come first among those that split experts.
TEST(ConfigChecks, ExpertsOfRanksThatShareOutSequencesOrLayers) {
  const std::string experts = "--model.n_expert=4", cp = "--parallel.cp=2", ep = "--parallel.ep=4";
  EXPECT_EQ(ErrorOnRanks(2, {experts, cp, "--parallel.ep=2"}), "no error");
  EXPECT_EQ(ErrorOnRanks(4, {experts, cp, "--parallel.tp=2"}), "no error");
  EXPECT_EQ(ErrorOnRanks(8, {experts, cp, "--parallel.tp=2", "--parallel.ep=2"}), "no error");
  EXPECT_EQ(ErrorOnRanks(4, {experts, cp, ep}), "no error");
  EXPECT_THAT(
      ErrorOnRanks(2, {experts, cp, ep}),
      HasSubstr("does not divide the 2 ranks of this run: start a multiple of 4 processes"));
  EXPECT_THAT(ErrorOnRanks(4, {experts, cp, "--parallel.ep=8"}), HasSubstr("does not divide"));
  EXPECT_THAT(ErrorOnRanks(4, {experts, "--parallel.pp=2", ep, "--train.grad_accum=4"}),
              HasSubstr("does not divide the 2 ranks that parallel.pp and parallel.tp leave for "
                        "other samples: start a multiple of 8 processes, as with --nproc=8"));
  EXPECT_THAT(
      ErrorOnRanks(12, {experts, cp, ep, "--parallel.shard=full", "--parallel.shard_ranks=3"}),
      HasSubstr("parallel.ep"));
}

// Options of some sections are added in turn.
TEST(ConfigChecks, AnUnknownSectionIsToldTheOthersOnce) {
  EXPECT_EQ(
      test::MessageOf<InputError>([] { RunConfigFromToml("[quantum]", "c.toml"); }),
      "c.toml:1:2: unknown section [quantum]; there are model, data, train, optim, lora, dpo, "
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

TEST(ConfigChecks, ShardingOptionsThatDoNothingAreRefused) {
  EXPECT_EQ(ParsedRun({"--parallel.shard=full", "--parallel.reshard_after_forward=false"})
                .config.parallel.shard,
            "full");
  EXPECT_THAT(ErrorOf({"--parallel.tp=2", "--virtual.tp=6"}), HasSubstr("use virtual.tp = 4"));
  EXPECT_THAT(ErrorOf({"--parallel.cp=2", "--virtual.cp=6"}), HasSubstr("use virtual.cp = 4"));
  EXPECT_THAT(ErrorOf({"--parallel.ep=3"}), HasSubstr("must be a power of two"));
  EXPECT_THAT(ErrorOf({"--parallel.ep=4", "--parallel.cp=6"}),
              HasSubstr("neither divides parallel.cp = 6"));
  EXPECT_THAT(ErrorOf({"--parallel.shard_ranks=2"}),
              HasSubstr("does nothing without parallel.shard = \"full\""));
  EXPECT_THAT(ErrorOf({"--parallel.shard=full", "--parallel.shard_ranks=1"}),
              HasSubstr("parallel.shard_ranks = 1 (command line) shards nothing"));
  EXPECT_THAT(ErrorOf({"--parallel.shard=gradients", "--parallel.reshard_after_forward=false"}),
              HasSubstr("does nothing without parallel.shard = \"full\""));
  EXPECT_THAT(ErrorOf({"--parallel.shard=all"}), HasSubstr("none, optimizer, gradients, full"));
}

TEST(ConfigChecks, PipelineOptionsThatDoNotFitAreRefused) {
  const RunConfig config =
      ParsedRun({"--parallel.pp=4", "--parallel.schedule=zbv", "--train.grad_accum=8"}).config;
  EXPECT_EQ(config.parallel.pp, 4);
  EXPECT_EQ(config.parallel.schedule, "zbv");
  EXPECT_EQ(RunConfigFromToml(ToToml(config), "again").parallel.schedule, "zbv");
  EXPECT_THAT(ErrorOf({"--parallel.schedule=zb_h1"}), HasSubstr("does nothing without a pipeline"));
  const RunConfig composed =
      ParsedRun({"--parallel.pp=2", "--parallel.shard=full", "--parallel.tp=2"}).config;
  EXPECT_EQ(composed.parallel.shard, "full");
  EXPECT_THAT(ErrorOf({"--parallel.pp=2", "--parallel.shard=full",
                       "--parallel.reshard_after_forward=false"}),
              HasSubstr("does nothing with parallel.pp"));
  EXPECT_THAT(ErrorOf({"--parallel.pp=2", "--parallel.schedule=gpipe"}),
              HasSubstr("1f1b, interleaved, zb_h1, zbv"));
  EXPECT_THAT(ErrorOf({"--parallel.pp=0"}), HasSubstr("parallel.pp"));
  EXPECT_THAT(ErrorOf({"--parallel.pp=9223372036854775807"}), HasSubstr("at most 1024"));
  EXPECT_THAT(ErrorOf({"--pp_size=2"}), HasSubstr("did you mean --parallel.pp"));
}

// Presets name a tokenizer for text.
TEST(ConfigChecks, PreparedFoldersKeepTheirTokenizerUnlessTheUserNamesOne) {
  const test::TempFolder folder("prepared_for_a_preset");
  WriteFileAtomically(folder.Path("a.txt"), std::string(2000, 'a'));
  const std::string tokens = folder.Path("tokens");
  data::Prepare({.paths = {folder.Path("a.txt")},
                 .text = {},
                 .tokenizer = std::make_shared<data::ByteTokenizer>(),
                 .out_dir = tokens,
                 .threads = 1});
  const auto prepare = [&](std::vector<std::string> arguments) {
    const ParsedRun run(arguments);
    return PrepareRun(run.options, run.config, {}, kCpu, 1);
  };
  for (const std::string& data :
       {"--data.path=" + tokens, "--data.path=" + tokens + "/*.bin", "--data.mix=" + tokens + ":1",
        "--data.mix=" + tokens + "/tokens_train_000000.bin:1"}) {
    for (const std::string preset : {"llama-tiny", "shakespeare-char-cpu", "gpt2"}) {
      SCOPED_TRACE(preset + " " + data);
      const RunSetup setup = prepare({"--model.preset=" + preset, data, "--model.block_size=32"});
      EXPECT_EQ(setup.dataset.vocab_size, 256);
      // What the run's folder records opens the same data.
      WriteFileAtomically(folder.Path("config.toml"), ToToml(setup.config));
      const RunSetup again = prepare({folder.Path("config.toml")});
      EXPECT_EQ(again.config.data.tokenizer, "auto");
      EXPECT_EQ(again.dataset.fingerprint, setup.dataset.fingerprint);
      EXPECT_EQ(again.dataset.tokenizer->ToJson(), setup.dataset.tokenizer->ToJson());
    }
    EXPECT_THAT(test::MessageOf<InputError>([&] {
                  prepare({"--model.preset=llama-tiny", data, "--data.tokenizer=char"});
                }),
                HasSubstr("a char tokenizer is made from a text"));
  }
  // Texts beside them take it, too, where the preset's would be made from a text.
  const std::string mix = "--data.mix=" + tokens + ":1," + folder.Path("a.txt") + ":1";
  for (const std::string preset : {"llama-tiny", "shakespeare-char-cpu"}) {
    const RunSetup setup = prepare({"--model.preset=" + preset, mix, "--model.block_size=32"});
    EXPECT_EQ(setup.config.data.tokenizer, "auto");
    EXPECT_EQ(setup.dataset.vocab_size, 256);
  }
}

}  // namespace
}  // namespace lockstep::models
