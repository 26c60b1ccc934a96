// What a run refuses or notes once its data, its weights and its length are known.
#include "models/train/run_checks.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "core/io/file.h"
#include "data/prepare/prepare.h"
#include "data/tokenizer/byte_tokenizer.h"
#include "models/gpt/hf/hf_format.h"
#include "models/train/run_model.h"
#include "models/train/run_notes.h"
#include "models/train/run_setup.h"
#include "tests/models/parsed_run.h"
#include "tests/models/temp_folder.h"

namespace lockstep::models {
namespace {

using testing::HasSubstr;

// The error for options on this device; "no error": they would train.
std::string ErrorOn(Device device, std::vector<std::string> arguments) {
  arguments.push_back("--model.vocab_size=96");
  ParsedRun run(arguments);
  return test::MessageOf<InputError>([&] { PrepareShape(run.options, run.config, device, 1); });
}

// The error for options that go with weights of this shape.
std::string ErrorWithWeights(const GptConfig& shape, std::vector<std::string> arguments,
                             Device device = kCpu) {
  const test::TempFolder weights("weights");
  WriteFileAtomically(weights.Path("config.json"), ToHfConfig(shape));
  arguments.push_back("--init_from=" + weights.path());
  ParsedRun run(arguments);
  return test::MessageOf<InputError>([&] { PrepareShape(run.options, run.config, device, 1); });
}

// Before the run, which would fail in its first step; and what is to be used instead is taken.
TEST(RunChecks, HeadsThatAreTooLargeForGpus) {
  constexpr Device kGpu{DeviceType::kCuda, 0};
  const std::string width = "--model.n_embd=", heads = "--model.n_head=";
  const auto expect = [&](const std::vector<std::string>& given, const std::string& size,
                          const std::string& instead) {
    EXPECT_EQ(ErrorOn(kCpu, given), "no error");
    EXPECT_THAT(ErrorOn(kGpu, given),
                HasSubstr("command line: attention on a GPU takes heads of up to 256 numbers, and "
                          "those of this model have " +
                          size + ": use " + instead + ", or device = \"cpu\""));
  };
  expect({width + "1024", heads + "2"}, "512", "model.n_head = 4");
  EXPECT_EQ(ErrorOn(kGpu, {width + "1024", heads + "4"}), "no error");
  // Rope rotates pairs, and heads of keys divide the others.
  expect({width + "510", heads + "1", "--model.position=rope"}, "510", "model.n_head = 3");
  EXPECT_EQ(ErrorOn(kGpu, {width + "510", heads + "3", "--model.position=rope"}), "no error");
  expect({width + "1200", heads + "2", "--model.n_kv_head=2"}, "600", "model.n_head = 6");
  EXPECT_EQ(ErrorOn(kGpu, {width + "1200", heads + "6", "--model.n_kv_head=2"}), "no error");
  expect({"--model.head_dim=264"}, "264", "model.head_dim = 256");
  EXPECT_EQ(ErrorOn(kGpu, {"--model.head_dim=256"}), "no error");
  const GptConfig large{
      .vocab_size = 96, .block_size = 8, .n_layer = 1, .n_head = 1, .n_embd = 264};
  EXPECT_EQ(ErrorWithWeights(large, {}), "no error");
  EXPECT_THAT(ErrorWithWeights(large, {}, kGpu), HasSubstr("have 264: use device = \"cpu\""));
}

// What the weights have no use for does not train on silently.
TEST(RunChecks, ExpertsOfWeights) {
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

TEST(RunChecks, SharedExpertsOfWeightsAreWholeOnes) {
  GptConfig shape{.vocab_size = 11, .block_size = 8, .n_layer = 1, .n_head = 2, .n_embd = 8};
  shape.mixture = {.n_expert = 4, .n_expert_used = 2, .n_inner = 6, .n_shared = 9};
  EXPECT_EQ(ErrorWithWeights(shape, {}), "no error");
  EXPECT_THAT(ErrorWithWeights(shape, {"--model.n_shared_expert=1"}),
              HasSubstr("is 9 wide, no multiple of the 6 of an expert"));
  shape.mixture.n_shared = 12;
  EXPECT_EQ(ErrorWithWeights(shape, {"--model.n_shared_expert=2"}), "no error");
}

// Of the run's steps, however they are given.
TEST(RunChecks, WarmupsThatFitTheRun) {
  const auto run = [](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--train.batch_size=16", "--model.block_size=64"});
    ParsedRun parsed(arguments);
    const RunSetup setup = PrepareRun(parsed.options, parsed.config, {}, kCpu, 1);
    return std::pair(setup, NoteOnWarmup(parsed.options, setup));
  };
  const auto warmup = [&](std::vector<std::string> arguments) {
    const auto [setup, note] = run(std::move(arguments));
    EXPECT_EQ(note, "");
    EXPECT_EQ(MakeSchedule(setup.config).options().warmup, setup.config.optim.warmup);
    return setup.config.optim.warmup;
  };
  EXPECT_EQ(warmup({"--train.steps=5000"}), 100);
  EXPECT_EQ(warmup({"--train.steps=1000"}), 100);
  EXPECT_EQ(warmup({"--train.steps=300"}), 30);
  EXPECT_EQ(warmup({"--train.steps=5"}), 0);
  EXPECT_EQ(warmup({"--train.steps=300", "--optim.decay_steps=50"}), 5);
  EXPECT_EQ(warmup({"--train.steps=300", "--optim.warmup=150"}), 150);
  const int64_t steps = run({"--train.steps=0", "--train.epochs=0.5"}).first.steps();
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
TEST(RunChecks, TheLossChunkFollowsFromTheRun) {
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

// Of chunks of sequences, products are not deferred.
TEST(RunChecks, SchedulesThatGainNothingAreNoted) {
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

// Presets name a tokenizer for text.
TEST(RunChecks, PreparedFoldersKeepTheirTokenizerUnlessTheUserNamesOne) {
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
      WriteFileAtomically(folder.Path("config.toml"), ToToml(setup.asked));
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
