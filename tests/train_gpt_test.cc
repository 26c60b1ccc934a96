// train_gpt and sample_gpt as programs, as users run them.
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "tests/sanitized.h"
#include "tests/selection.h"
#include "tests/subprocess.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// The options that determine a test run's numbers; it takes seconds on one core.
const std::vector<std::string> kTiny = {
    "--model.n_layer=1",      "--model.n_head=2",      "--model.n_embd=16",
    "--model.block_size=16",  "--train.batch_size=4",  "--train.steps=40",
    "--optim.warmup=4",       "--checkpoint.every=10", "--train.eval_every=20",
    "--train.eval_batches=2", "--train.log_every=10",  "--train.sample_tokens=20",
    "--model.dropout=0.1",    "--checkpoint.keep=0"};

class TrainGpt : public testing::Test {
 protected:
  TrainGpt() {
    folder_ =
        JoinPath(testing::TempDir(), testing::UnitTest::GetInstance()->current_test_info()->name());
    RemoveTree(folder_);
    MakeDirectories(folder_);
  }

  std::string Path(const std::string& name) const { return JoinPath(folder_, name); }

  std::string Text(const std::string& name, const std::string& contents) const {
    WriteFileAtomically(Path(name), contents);
    return Path(name);
  }

  std::vector<std::string> Arguments(const std::string& out,
                                     std::vector<std::string> more = {}) const {
    std::vector<std::string> all = {"models/train_gpt"};
    all.insert(all.end(), kTiny.begin(), kTiny.end());
    all.push_back("--out_dir=" + Path(out));
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  Result Train(const std::string& out, std::vector<std::string> more = {},
               std::map<std::string, std::string> environment = {}) const {
    return RunProgram(Arguments(out, std::move(more)), environment);
  }

  // The files that hold everything the next step depends on.
  std::string Bytes(const std::string& out, int step) const {
    const std::string digits = std::to_string(step);
    const std::string c =
        Path(out) + "/checkpoints/step-" + std::string(8 - digits.size(), '0') + digits;
    return ReadFile(c + "/model.safetensors") + ReadFile(c + "/optimizer.safetensors");
  }

  std::string folder_;
};

TEST_F(TrainGpt, TrainsOnTheEmbeddedCorpusAndSamples) {
  const Result run = Train("out");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, AllOf(HasSubstr("step 40/40 | loss"), HasSubstr("validation loss"),
                             HasSubstr("---- sample ----"), HasSubstr("eta")));
  for (const char* file :
       {"config.toml", "metrics.jsonl", "latest/model.safetensors", "latest/config.json",
        "latest/tokenizer.json", "latest/optimizer.safetensors", "latest/trainer_state.json",
        "latest/DONE"}) {
    EXPECT_TRUE(PathExists(Path("out") + "/" + file)) << file;
  }
  std::istringstream metrics(ReadFile(Path("out/metrics.jsonl")));
  int64_t next = 0;
  double steps_ms = 0, kernels_ms = 0;
  std::set<std::string> kernels;
  for (std::string line; std::getline(metrics, line); ++next) {
    const auto j = Json::parse(line);
    EXPECT_EQ(j["step"], next);
    EXPECT_EQ(j.contains("val_loss"), next % 20 == 0);
    if (next == 0) continue;
    for (const char* phase : {"forward_ms", "backward_ms", "update_ms"})
      steps_ms += j[phase].get<double>();
    const auto kernel_ms = j.value("kernel_ms", Json::object());
    for (const auto& [name, ms] : kernel_ms.items()) {
      kernels.insert(name);
      kernels_ms += ms.get<double>();
    }
  }
  EXPECT_EQ(next, 41);
  EXPECT_NEAR(kernels_ms, steps_ms, 1e-6 * steps_ms) << "every millisecond has an owner";
  EXPECT_THAT(kernels,
              testing::IsSupersetOf({"linear_forward", "linear_backward", "attention_forward",
                                     "adamw_update", "between kernels"}));
  const std::string report = ReadFile(Path("out/report.html"));
  EXPECT_THAT(report, AllOf(HasSubstr("Step 40 of 40"), HasSubstr(">finished<"),
                            HasSubstr("the embedded corpus"), HasSubstr("What it writes"),
                            HasSubstr(">linear_backward<")));
  EXPECT_THAT(run.out, AllOf(HasSubstr("report " + Path("out/report.html")),
                             HasSubstr("at the peak of a step: parameters")));
  EXPECT_EQ(ListDirectory(Path("out/tensorboard")).size(), 1u);
  EXPECT_THAT(ReadFile(Path("out/samples.jsonl")), HasSubstr("{\"step\":40,"));
  const Result sample = RunProgram({"models/sample_gpt", "--checkpoint=" + Path("out/latest"),
                                    "--prompt=The ", "--tokens=30", "--threads=1"});
  ASSERT_EQ(sample.exit_code, 0) << sample.err;
  EXPECT_THAT(sample.out, testing::StartsWith("The "));
  EXPECT_GT(sample.out.size(), 30u);
}

TEST_F(TrainGpt, BitsDoNotDependOnThreads) {
  ASSERT_EQ(Train("one", {"--threads=1"}).exit_code, 0);
  ASSERT_EQ(Train("two", {"--threads=2"}).exit_code, 0);
  ASSERT_EQ(Train("three", {"--threads=3"}).exit_code, 0);
  EXPECT_EQ(Bytes("one", 40), Bytes("two", 40));
  EXPECT_EQ(Bytes("one", 40), Bytes("three", 40));
  EXPECT_NE(Bytes("one", 30), Bytes("one", 40));
}

// Promises 12 and resume: whichever file operation a kill hits, the run resumes from a good
// checkpoint and ends with the bits of an undisturbed run.
TEST_F(TrainGpt, KilledAtAnyFileOperationItResumesToTheSameBits) {
  const std::vector<std::string> shorter = {"--train.steps=12", "--checkpoint.every=4",
                                            "--checkpoint.keep_best=true", "--threads=1"};
  ASSERT_EQ(Train("undisturbed", shorter).exit_code, 0);
  const std::string expected = Bytes("undisturbed", 12);
  // Under sanitizers the file operations are the same.
  const int stride = !test::TakesAll() || test::kSanitized ? 11 : 1;
  int kills = 0;
  for (int at = 1;; at += stride) {
    RemoveTree(Path("out"));
    const Result killed = Train("out", shorter, {{"LOCKSTEP_FAULT", "kill@" + std::to_string(at)}});
    if (killed.exit_code == 0) break;
    ASSERT_EQ(killed.signal, SIGKILL) << killed.err;
    ++kills;
    // Between the last checkpoint and the end, too: what the kill left out is made up for.
    const bool finished = PathExists(Path("out/DONE"));
    const Result resumed = Train("out", shorter);
    ASSERT_EQ(resumed.exit_code, finished ? 2 : 0) << "kill@" << at << ": " << resumed.err;
    ASSERT_EQ(Bytes("out", 12), expected) << "kill@" << at;
    ASSERT_THAT(ReadFile(Path("out/report.html")), HasSubstr(">finished<")) << "kill@" << at;
    ASSERT_TRUE(PathExists(Path("out/best/DONE"))) << "kill@" << at;
  }
  EXPECT_GT(kills, 60 / stride);
}

TEST_F(TrainGpt, AKilledRunResumesAtTwoThreadsToo) {
  ASSERT_EQ(Train("undisturbed", {"--threads=2"}).exit_code, 0);
  // Dies while it writes the checkpoint of step 30.
  for (int at = 100; !PathExists(Path("out/checkpoints/step-00000020/DONE")); at += 5) {
    RemoveTree(Path("out"));
    ASSERT_EQ(
        Train("out", {"--threads=2"}, {{"LOCKSTEP_FAULT", "kill@" + std::to_string(at)}}).signal,
        SIGKILL);
  }
  const Result resumed = Train("out", {"--threads=2"});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(resumed.out, HasSubstr("resuming from"));
  EXPECT_EQ(Bytes("out", 40), Bytes("undisturbed", 40));
  // Its metrics are those of a single run.
  std::istringstream metrics(ReadFile(Path("out/metrics.jsonl")));
  int64_t next = 0;
  for (std::string line; std::getline(metrics, line); ++next)
    EXPECT_EQ(Json::parse(line)["step"], next);
  EXPECT_EQ(next, 41);
  EXPECT_THAT(ReadFile(Path("out/report.html")), HasSubstr("Step 40 of 40"));
}

TEST_F(TrainGpt, EveryOptimizerAndPrecisionResumesToTheSameBits) {
  const std::map<std::string, std::vector<std::string>> cases = {
      {"sgd", {"--optim.name=sgd"}},
      {"lion", {"--optim.name=lion"}},
      {"muon", {"--optim.name=muon", "--optim.state_dtype=bf16"}},
      {"bf16", {"--train.precision=bf16"}},
      {"pure",
       {"--train.precision=bf16", "--optim.master_weights=false", "--optim.state_dtype=bf16",
        "--train.grad_dtype=bf16"}},
      // The scale grows within the steps that are repeated, by what was counted before.
      {"fp16", {"--train.precision=fp16", "--train.loss_scale_every=17"}}};
  for (const auto& [name, more] : cases) {
    std::vector<std::string> options = more;
    options.push_back("--threads=1");
    const Result run = Train(name, options);
    ASSERT_EQ(run.exit_code, 0) << run.err;
    const std::string expected = Bytes(name, 40);
    // As if killed after the checkpoint of step 30.
    RemoveTree(Path(name + "/checkpoints/step-00000040"));
    const Result resumed = Train(name, options);
    ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
    EXPECT_THAT(resumed.out, HasSubstr("resuming from"));
    EXPECT_EQ(Bytes(name, 40), expected) << name;
  }
  std::istringstream metrics(ReadFile(Path("fp16/metrics.jsonl")));
  for (std::string line; std::getline(metrics, line);) {
    const auto j = Json::parse(line);
    if (j["step"] == 0) continue;
    EXPECT_EQ(j["loss_scale"], j["step"] < 17 ? 65536 : j["step"] < 34 ? 131072 : 262144) << line;
  }
  EXPECT_THAT(ReadFile(Path("fp16/report.html")),
              HasSubstr("0 updates skipped, loss scale 262144"));
  // One optimizer does not load another's state.
  RemoveTree(Path("sgd/checkpoints/step-00000040"));
  const Result other = Train("sgd", {"--optim.name=lion"});
  EXPECT_NE(other.exit_code, 0);
  EXPECT_THAT(other.err, HasSubstr("optim.name"));
}

TEST_F(TrainGpt, CorruptedNewestCheckpointIsNamedAndTheOlderUsed) {
  ASSERT_EQ(Train("undisturbed", {"--threads=1"}).exit_code, 0);
  // As if killed after the checkpoint of step 30, which then lost a bit.
  ASSERT_EQ(Train("out", {"--threads=1"}).exit_code, 0);
  RemoveTree(Path("out/checkpoints/step-00000040"));
  const std::string file = Path("out/checkpoints/step-00000030/model.safetensors");
  std::string bytes = ReadFile(file);
  bytes[bytes.size() - 7] ^= 1;
  WriteFileAtomically(file, bytes);
  const Result resumed = Train("out", {"--threads=1"});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(resumed.err, AllOf(HasSubstr("step-00000030"), HasSubstr("model.safetensors")));
  EXPECT_THAT(resumed.out, HasSubstr("(step 20)"));
  EXPECT_EQ(Bytes("out", 40), Bytes("undisturbed", 40));
}

// Promise 15.
TEST_F(TrainGpt, ADiskThatFillsUpDoesNotStopTraining) {
  const Result run = Train("out", {"--threads=1"}, {{"LOCKSTEP_FAULT", "enospc@60"}});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("training continues"));
  EXPECT_THAT(run.out, HasSubstr("step 40/40"));
}

// A folder in the place of the report cannot be replaced.
TEST_F(TrainGpt, ARunWithoutItsReportNamesNoneAndMakesItLater) {
  MakeDirectories(Path("out/report.html/obstacle"));
  const Result run = Train("out", {"--threads=1", "--train.eval_every=0"});
  EXPECT_EQ(run.exit_code, 0) << run;
  EXPECT_THAT(run.err, HasSubstr("warning: no report: "));
  EXPECT_THAT(run.err, testing::Not(HasSubstr("training continues")));
  EXPECT_THAT(run.out, testing::Not(HasSubstr("report.html")));
  RemoveTree(Path("out/report.html"));
  const Result again = Train("out", {"--threads=1", "--train.eval_every=0"});
  EXPECT_EQ(again.exit_code, 0) << again;
  EXPECT_THAT(again.out, HasSubstr("report " + Path("out/report.html")));
  EXPECT_THAT(ReadFile(Path("out/report.html")), HasSubstr(">finished<"));
}

// Whatever the machine has: hundreds of terabytes.
TEST_F(TrainGpt, WhatNoSwapSpaceWouldHoldIsRefused) {
  const std::vector<std::string> huge = {"--model.n_embd=100000", "--model.n_layer=100"};
  const Result run = Train("out", huge);
  EXPECT_EQ(run.exit_code, 2) << run;
  EXPECT_THAT(run.err, AllOf(HasSubstr("this run needs "), HasSubstr(" TiB, and this machine has"),
                             testing::Not(HasSubstr("warning: this run"))));
  EXPECT_FALSE(PathExists(Path("out/metrics.jsonl")));
  const Result dry = Train("out", {huge[0], huge[1], "--dry_run"});
  EXPECT_EQ(dry.exit_code, 0) << dry;
  EXPECT_THAT(dry.err, HasSubstr("warning: this run needs "));
}

TEST_F(TrainGpt, CtrlCSavesAndSaysHowToContinue) {
  // Long enough that the signal arrives before the end.
  std::vector<std::string> options = {"--train.steps=2000", "--model.n_embd=64",
                                      "--checkpoint.every=0", "--train.eval_every=0"};
  ASSERT_EQ(Train("undisturbed", options).exit_code, 0);
  options.push_back("--train.log_every=1");
  Subprocess program(Arguments("out", options));
  program.WaitForOutput("step    5/2000");
  program.Signal(SIGINT);
  const Result stopped = program.Wait();
  ASSERT_EQ(stopped.exit_code, 130) << stopped.err;
  EXPECT_THAT(stopped.out,
              AllOf(HasSubstr("interrupted after step"), HasSubstr("run the same command again")));
  const Result resumed = Train("out", options);
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_EQ(Bytes("out", 2000), Bytes("undisturbed", 2000));
}

TEST_F(TrainGpt, ASecondTrainerInTheFolderIsRefused) {
  const std::vector<std::string> endless = {"--train.steps=10000000", "--train.log_every=1",
                                            "--train.eval_every=0", "--checkpoint.keep=2"};
  Subprocess first(Arguments("out", endless));
  first.WaitForOutput("step       20/");
  const Result second = Train("out", endless);
  EXPECT_EQ(second.exit_code, 2) << second;
  std::array<char, 256> host = {};
  gethostname(host.data(), host.size() - 1);
  EXPECT_THAT(second.err, AllOf(HasSubstr("in use by another run"),
                                HasSubstr("process " + std::to_string(first.pid()) + " on " +
                                          std::string(host.data())),
                                HasSubstr("--out_dir=")));
  // A crash releases it.
  first.Signal(SIGKILL);
  EXPECT_EQ(first.Wait().signal, SIGKILL);
  Subprocess third(Arguments("out", endless));
  third.WaitForOutput("resuming from");
  third.WaitForOutput("| loss");
  third.Signal(SIGTERM);
  const Result stopped = third.Wait();
  EXPECT_EQ(stopped.exit_code, 128 + SIGTERM) << stopped;
  EXPECT_THAT(stopped.out, HasSubstr("resuming from"));
}

// A reader needs no lock.
TEST_F(TrainGpt, SamplesFromAFolderInWhichTrainingRuns) {
  Subprocess trainer(Arguments("out", {"--train.steps=10000000", "--train.log_every=1"}));
  trainer.WaitForOutput("step       30/");
  const Result sample =
      RunProgram({"models/sample_gpt", "--checkpoint=" + Path("out"), "--tokens=5", "--threads=1"});
  EXPECT_EQ(sample.exit_code, 0) << sample;
}

TEST_F(TrainGpt, AFullDiskBehindStandardOutputIsAnError) {
  const Result run = RunProgram({"/bin/sh", "-c", "models/train_gpt --print_config >/dev/full"});
  EXPECT_NE(run.exit_code, 0);
  EXPECT_THAT(run.err, HasSubstr("standard output"));
}

TEST_F(TrainGpt, WhatIsLeftOfARunIsNotOverwritten) {
  const auto refused = [&](const std::string& folder) {
    const Result run = Train(folder, {});
    EXPECT_EQ(run.exit_code, 2) << run;
    EXPECT_THAT(run.err, HasSubstr("choose another folder with --out_dir="));
  };
  for (const char* file : {"metrics.jsonl", "report.html", "latest"}) {
    const std::string path = Path(StrCat("out/", file));
    MakeDirectories(Path("out"));
    WriteFileAtomically(path, "mine");
    refused("out");
    EXPECT_EQ(ReadFile(path), "mine");
    RemoveTree(Path("out"));
  }
  // Its checkpoints were removed, or one was copied without its end.
  for (const bool all : {true, false}) {
    ASSERT_EQ(Train("out", {}).exit_code, 0);
    const std::string metrics = ReadFile(Path("out/metrics.jsonl"));
    if (all) {
      RemoveTree(Path("out/checkpoints"));
    } else {
      for (const auto& entry : std::filesystem::directory_iterator(Path("out/checkpoints"))) {
        RemoveTree((entry.path() / "DONE").string());
      }
      RemoveTree(Path("out/DONE"));
    }
    refused("out");
    EXPECT_EQ(ReadFile(Path("out/metrics.jsonl")), metrics);
    RemoveTree(Path("out"));
  }
}

// Step 0's line too, if the run ended before its first checkpoint.
TEST_F(TrainGpt, ARunThatRestartsInItsFolderReportsEachStepOnce) {
  // Dies at its first file operation after reporting step 5, long before the checkpoint of step 40.
  const auto reported = [&] {
    const std::string metrics = Path("out/metrics.jsonl");
    return PathExists(metrics) && ReadFile(metrics).find("\"step\":5,") != std::string::npos;
  };
  for (int at = 1; !reported(); ++at) {
    RemoveTree(Path("out"));
    ASSERT_EQ(Train("out", {"--checkpoint.every=0", "--train.log_every=1"},
                    {{"LOCKSTEP_FAULT", "kill@" + std::to_string(at)}})
                  .signal,
              SIGKILL);
  }
  const Result run = Train("out", {"--checkpoint.every=0"});
  ASSERT_EQ(run.exit_code, 0) << run;
  EXPECT_THAT(run.out, HasSubstr("starting over"));
  std::istringstream metrics(ReadFile(Path("out/metrics.jsonl")));
  int64_t next = 0;
  for (std::string line; std::getline(metrics, line); ++next)
    ASSERT_EQ(Json::parse(line)["step"], next);
  EXPECT_EQ(next, 41);
}

// GPT-2's vocabulary is not part of Lockstep, and training on its tokens needs none.
TEST_F(TrainGpt, TrainsOnTokensOfAMissingTokenizer) {
  std::string tokens;
  for (int i = 0; i < 2000; ++i) {
    tokens.push_back(static_cast<char>(i * i % 251));
    tokens.push_back(static_cast<char>(i % 196));  // up to 50,170
  }
  const std::string data = Text("gpt2.bin", tokens);
  const std::map<std::string, std::string> nowhere = {{"HOME", Path("home")},
                                                      {"LOCKSTEP_GPT2_DIR", ""}};
  const std::vector<std::string> options = {
      "--model.preset=gpt2", "--data.path=" + data, "--train.global_batch_size=4",
      "--train.steps=4",     "--optim.warmup=1",    "--train.sample_every=2"};
  const Result run = Train("out", options, nowhere);
  ASSERT_EQ(run.exit_code, 0) << run;
  const std::string all = run.out + run.err;
  EXPECT_THAT(run.out, AllOf(HasSubstr("vocabulary 50304"),
                             testing::ContainsRegex("sample ----\n50256 ([0-9]+ )+\n")));
  const std::string how = "LOCKSTEP_GPT2_DIR";
  EXPECT_THAT(all, HasSubstr(how));
  EXPECT_EQ(all.find(how), all.rfind(how)) << "reported twice";
  EXPECT_FALSE(PathExists(Path("out/latest/tokenizer.json")));
  const Result sample = RunProgram({"models/sample_gpt", "--checkpoint=" + Path("out"),
                                    "--tokens=5", "--threads=1", "--temperature=0"},
                                   nowhere);
  EXPECT_EQ(sample.exit_code, 0) << sample;
  EXPECT_THAT(sample.out, testing::MatchesRegex("50256 ([0-9]+ )+\n"));
  EXPECT_THAT(sample.err, HasSubstr("--tokenizer="));
  // A requested vocabulary that is broken is still an error, and so is a missing one for text.
  const Result text = Train("text", {"--data.tokenizer=gpt2"}, nowhere);
  EXPECT_EQ(text.exit_code, 2) << text;
  EXPECT_THAT(text.err, HasSubstr("needs GPT-2's vocabulary"));
}

TEST_F(TrainGpt, NeverTouchesAnotherRun) {
  ASSERT_EQ(Train("out").exit_code, 0);
  const std::string before = Bytes("out", 40);
  const auto refused = [&](std::vector<std::string> more, const std::string& why) {
    const Result run = Train("out", std::move(more));
    EXPECT_EQ(run.exit_code, 2);
    EXPECT_THAT(run.err, AllOf(HasSubstr(why), HasSubstr("--out_dir=")));
    EXPECT_EQ(Bytes("out", 40), before);
  };
  refused({}, "holds a finished run of this configuration");
  refused({"--optim.lr=0.5"}, "optim.lr: ");
  refused({"--checkpoint.resume=none"}, "holds another run");
  // A run that goes on from another's checkpoint, later than all there, or with none of its own.
  ASSERT_EQ(Train("other", {"--seed=3", "--train.steps=50"}).exit_code, 0);
  const std::string resume = "--checkpoint.resume=" + Path("other");
  refused({resume, "--train.steps=60"}, "other/checkpoints/step-00000050 is not of that run");
  RenameDurably(Path("out/checkpoints"), Path("kept"));
  const Result mixed = Train("out", {resume, "--train.steps=60"});
  EXPECT_EQ(mixed.exit_code, 2) << mixed;
  EXPECT_THAT(mixed.err, HasSubstr(Path("out/config.toml")));
  RenameDurably(Path("kept"), Path("out/checkpoints"));
  // Started there, and killed before the first checkpoint, it may begin again.
  ASSERT_EQ(Train("elsewhere", {resume, "--train.steps=60"}).exit_code, 0);
  RemoveTree(Path("elsewhere/checkpoints"));
  EXPECT_EQ(Train("elsewhere", {resume, "--train.steps=60"}).exit_code, 0);
  // It resumes on request.
  const Result longer = Train("out", {"--checkpoint.resume=" + Path("out"), "--train.steps=50"});
  ASSERT_EQ(longer.exit_code, 0) << longer.err;
  EXPECT_THAT(longer.out, AllOf(HasSubstr("train.steps: 40 -> 50"), HasSubstr("step 50/50")));
}

TEST_F(TrainGpt, StartsFromWeightsOfAnotherRun) {
  ASSERT_EQ(Train("first").exit_code, 0);
  const Result run = RunProgram({"models/train_gpt", "--init_from=" + Path("first/latest"),
                                 "--train.steps=2", "--optim.warmup=0", "--train.batch_size=2",
                                 "--train.eval_batches=2", "--out_dir=" + Path("second")});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("1 layers, 2 heads, width 16, context 16"));
  const Result other = RunProgram({"models/train_gpt", "--init_from=" + Path("first/latest"),
                                   "--model.n_layer=3", "--out_dir=" + Path("third")});
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.err, HasSubstr("leave model.n_layer out"));
  // A byte that a disk has changed is noticed by whatever reads it.
  const std::string file = Path("first/latest/model.safetensors");
  std::string bytes = ReadFile(file);
  bytes.back() ^= 0x40;
  WriteFileAtomically(file, bytes);
  const std::string first = Path("first/latest");
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"models/train_gpt", "--init_from=" + first, "--train.steps=2",
                                 "--out_dir=" + Path("fourth")},
        {"models/train_gpt", "--init_from=" + first, "--eval_only", "--train.eval_batches=2"},
        {"models/sample_gpt", "--checkpoint=" + first, "--tokens=3"}}) {
    const Result damaged = RunProgram(arguments);
    EXPECT_EQ(damaged.exit_code, 2) << damaged;
    EXPECT_THAT(damaged.err, HasSubstr("model.safetensors is corrupted"));
  }
}

// fp16 weights that a learning rate has made so large that activations are infinite.
TEST_F(TrainGpt, AValidationLossThatIsNotFiniteIsNotTheBest) {
  const std::vector<std::string> wild = {"--train.precision=fp16", "--optim.lr=1000",
                                         "--optim.warmup=0", "--train.eval_every=0",
                                         "--train.sample_tokens=0"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), wild.begin(), wild.end());
    return more;
  };
  const Result run = Train("out", with({"--train.steps=1"}));
  ASSERT_EQ(run.exit_code, 0) << run;
  EXPECT_THAT(run.out, AllOf(HasSubstr("validation loss"), testing::Not(HasSubstr("best"))));
  EXPECT_THAT(run.err, HasSubstr("warning: the validation loss after step 1 is not a finite"));
  const auto state = Json::parse(ReadFile(Path("out/latest/trainer_state.json")));
  EXPECT_EQ(state["best_val_loss"], 0);
  // It goes on, to where the loss is no better.
  const Result on = Train("out", with({"--train.steps=2", "--checkpoint.resume=" + Path("out")}));
  EXPECT_EQ(on.exit_code, 1) << on;
  EXPECT_THAT(on.err, HasSubstr("step 2: the loss is"));
  EXPECT_THAT(ReadFile(Path("out/report.html")), HasSubstr(">failed<"));
}

TEST_F(TrainGpt, SaysHowManyUpdatesWereSkipped) {
  const std::vector<std::string> fp16 = {"--train.precision=fp16", "--train.sample_tokens=0"};
  const auto run = [&](const std::string& scale) {
    auto more = fp16;
    more.push_back("--train.loss_scale=" + scale);
    const Result r = Train("out" + scale, more);
    EXPECT_EQ(r.exit_code, 0) << r;
    return r;
  };
  const Result many = run("1125899906842624");  // 2^50
  EXPECT_THAT(many.out, AllOf(HasSubstr(" | norm infinite | 9 of 9 updates skipped | "),
                              testing::Not(HasSubstr("norm -nan"))));
  EXPECT_THAT(many.err, testing::ContainsRegex("warning: 3[0-9] of 40 updates were skipped"));
  const Result none = run("1024");
  EXPECT_THAT(none.out + none.err,
              AllOf(HasSubstr(" | norm "), testing::Not(HasSubstr("skipped"))));
}

// With so narrow a range, many: the guard's history is in the checkpoint.
TEST_F(TrainGpt, SkipsSpikesAndResumesToTheSameBits) {
  const std::vector<std::string> narrow = {"--train.spike=0.01", "--train.steps=100",
                                           "--checkpoint.every=80", "--train.eval_every=0",
                                           "--train.sample_tokens=0"};
  const Result whole = Train("whole", narrow);
  ASSERT_EQ(whole.exit_code, 0) << whole;
  EXPECT_THAT(whole.out, testing::ContainsRegex("[0-9]+ of 100 updates were skipped, since"));
  EXPECT_THAT(whole.err, HasSubstr("(train.spike = 0.01)"));
  const std::string metrics = ReadFile(Path("whole/metrics.jsonl"));
  EXPECT_THAT(metrics, HasSubstr("\"spike\":true"));
  auto resumed = narrow;
  resumed.push_back("--checkpoint.resume=" + Path("whole/checkpoints/step-00000080"));
  const Result second = Train("second", resumed);
  ASSERT_EQ(second.exit_code, 0) << second;
  EXPECT_EQ(Bytes("second", 100), Bytes("whole", 100));
  EXPECT_THAT(second.err, HasSubstr("(train.spike = 0.01)"));
}

TEST_F(TrainGpt, DryRunWritesNothing) {
  const Result run = Train("out", {"--dry_run"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, AllOf(HasSubstr("parameters"), HasSubstr("40 steps")));
  EXPECT_FALSE(PathExists(Path("out")));
}

TEST_F(TrainGpt, ShardingInASingleProcessIsWarnedOf) {
  const Result run = Train("out", {"--dry_run", "--parallel.shard=full"});
  EXPECT_EQ(run.exit_code, 0) << run;
  EXPECT_THAT(run.err, HasSubstr("parallel.shard = \"full\" shards nothing in a single process"));
  EXPECT_THAT(Train("out", {"--dry_run"}).err, testing::IsEmpty());
}

TEST_F(TrainGpt, ReportsTheMemoryItWillTake) {
  const Result run = Train("out", {"--dry_run"});
  for (const char* kind :
       {"parameters", "gradients", "optimizer", "activations", "workspace", "total"})
    EXPECT_THAT(run.out, HasSubstr(std::string("  ") + kind));
  const Result larger = Train("out", {"--dry_run", "--train.batch_size=400"});
  const auto plan = [](const std::string& out) { return out.substr(out.find("  activations")); };
  EXPECT_NE(plan(run.out), plan(larger.out));
}

// The process takes as much memory as the plan says.
TEST_F(TrainGpt, TheWholeProcessIsPlanned) {
  if (test::kSanitized) GTEST_SKIP() << "sanitizers take extra memory";
  const Result run =
      Train("out", {"--model.n_embd=128", "--model.n_layer=4", "--train.batch_size=48",
                    "--model.block_size=64", "--train.steps=3", "--optim.warmup=1"});
  ASSERT_EQ(run.exit_code, 0) << run;
  const auto mib = [&](const std::string& before, const std::string& after) {
    const size_t end = run.out.find(after), begin = run.out.rfind(before, end) + before.size();
    EXPECT_NE(end, std::string::npos) << after << run.out;
    return std::stod(run.out.substr(begin, end - begin));
  };
  const double planned = mib(", ", " MiB with the program and its data");
  const double tensors = mib("peak memory ", " MiB of tensors");
  const double process = mib("of tensors, ", " MiB of the process");
  EXPECT_GT(process, tensors);
  // Scratch memory of threads, and what evaluation and samples of other sizes take.
  EXPECT_NEAR(planned, process, 0.1 * process + 16) << run.out;
}

TEST_F(TrainGpt, AModelThatFitsNoMachineIsReportedBeforeItIsMade) {
  const Result run = Train("out", {"--dry_run", "--model.vocab_size=1000000000"});
  EXPECT_EQ(run.exit_code, 0) << run;
  EXPECT_THAT(run.err,
              AllOf(HasSubstr("this machine has "), HasSubstr("model.vocab_size (now 1000000000)"),
                    testing::Not(HasSubstr("batch_size"))));
}

// The share of the device's arithmetic is the same wherever it is reported. Where a step is faster
// than the rate that was measured at the start, that is corrected.
TEST_F(TrainGpt, ReportsTheShareOfTheMachinesArithmetic) {
  const Result run = Train("out");
  ASSERT_EQ(run.exit_code, 0) << run;
  EXPECT_THAT(run.out, testing::ContainsRegex(" tok/s \\| [0-9]+% of GEMM \\| eta"));
  EXPECT_THAT(run.out, testing::ContainsRegex("of the model, [0-9]+% of GEMM, peak"));
  EXPECT_THAT(run.out, testing::Not(HasSubstr("mfu"))) << "CPUs have no specified peak";
  std::istringstream metrics(ReadFile(Path("out/metrics.jsonl")));
  double ratio = 0;
  for (std::string line; std::getline(metrics, line);) {
    const auto j = Json::parse(line);
    if (j["step"] == 0) continue;
    const double share = j["gemm_share"], speed = j["tokens_per_second"];
    if (ratio == 0) ratio = share / speed;
    if (share < 1 - 1e-9) {
      EXPECT_NEAR(share / speed, ratio, 1e-9 * ratio);
    }
    EXPECT_LE(share / speed, ratio * (1 + 1e-9));
    ratio = share / speed;
    EXPECT_GT(share, 0);
    EXPECT_LE(share, 1 + 1e-9);
    EXPECT_FALSE(j.contains("mfu"));
  }
  EXPECT_THAT(ReadFile(Path("out/report.html")), HasSubstr("% of GEMM"));
}

TEST_F(TrainGpt, TracesTheStepsAskedFor) {
  const Result run = Train("out", {"--log.trace=19:21"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("trace " + Path("out/trace-19-21.json")));
  const auto trace = Json::parse(ReadFile(Path("out/trace-19-21.json")));
  std::map<std::string, int> spans;
  for (const auto& e : trace["traceEvents"]) {
    if (e["ph"] != "X") continue;
    ++spans[e["name"]];
    EXPECT_GE(e["args"]["step"], 19);
    EXPECT_LE(e["args"]["step"], 21);
  }
  EXPECT_EQ(spans["step"], 3);
  EXPECT_EQ(spans["data"], 3);
  EXPECT_EQ(spans["eval"], 1);        // of step 20
  EXPECT_EQ(spans["checkpoint"], 1);  // of step 20
  EXPECT_GT(spans["linear"], 0);
  // It changes no numbers, and is only written on request.
  ASSERT_EQ(Train("plain").exit_code, 0);
  EXPECT_EQ(Bytes("out", 40), Bytes("plain", 40));
  EXPECT_FALSE(PathExists(Path("plain/trace-19-21.json")));
}

struct BadInput {
  const char* name;
  std::vector<std::string> arguments;
  std::string message;
};

TEST_F(TrainGpt, BadInputIsExplained) {
  const std::string tiny = Text("tiny.txt", "ab");
  const std::string empty = Text("empty.txt", "");
  const std::string odd = Text("odd.bin", std::string(1001, 'a'));
  const std::string large_ids = Text("large.bin", std::string(4000, '\x7f'));
  const std::string file = Text("file", "x");
  const BadInput inputs[] = {
      {"unknown key", {"--optim.learning_rat=1"}, "optim.lr"},
      {"wrong type", {"--train.steps=many"}, "train.steps"},
      {"out of range", {"--train.batch_size=0"}, "train.batch_size"},
      {"not finite", {"--optim.lr=nan"}, "optim.lr"},
      {"n_head", {"--model.n_head=3"}, "is not a multiple of"},
      {"missing data", {"--data.path=" + Path("none.txt")}, "none.txt"},
      {"empty data", {"--data.path=" + empty}, "empty"},
      {"tiny data", {"--data.path=" + tiny}, "tiny.txt"},
      {"odd file", {"--data.path=" + odd}, "odd"},
      {"vocabulary", {"--data.path=" + large_ids, "--model.vocab_size=100"}, "vocab"},
      {"no such checkpoint", {"--checkpoint.resume=" + Path("nowhere")}, "nowhere"},
      {"no such weights", {"--init_from=" + Path("nowhere")}, "nowhere"},
      {"out_dir is a file", {"--out_dir=" + file}, "file"},
      {"out_dir below a file", {"--out_dir=" + file + "/out"}, "file"},
      {"device", {"--device=cuda:999"}, "device=cuda:999"},
      {"trace", {"--log.trace=9:3"}, "write 3:9"},
      {"precision", {"--optim.master_weights=false"}, "train.precision = \"bf16\""},
  };
  for (const BadInput& bad : inputs) {
    const Result run = Train("out", bad.arguments);
    EXPECT_TRUE(run.exit_code == 1 || run.exit_code == 2) << bad.name << ": " << run.exit_code;
    EXPECT_THAT(run.err, HasSubstr(bad.message)) << bad.name;
    EXPECT_THAT(run.err, testing::StartsWith("train_gpt: ")) << bad.name;
    EXPECT_FALSE(PathExists(Path("out/checkpoints"))) << bad.name;
  }
}

TEST_F(TrainGpt, MismatchedCheckpointIsExplained) {
  ASSERT_EQ(Train("a").exit_code, 0);
  const Result run = Train("b", {"--checkpoint.resume=" + Path("a"), "--model.n_embd=32"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, AllOf(HasSubstr("model.n_embd"), HasSubstr("have 16")));
}

// As advised where memory is short: another state than the checkpoint's.
TEST_F(TrainGpt, ACheckpointOfOtherStateIsExplained) {
  const std::vector<std::string> bf16 = {"--train.precision=bf16", "--train.steps=10"};
  ASSERT_EQ(Train("a", bf16).exit_code, 0);
  const auto refused = [&](std::vector<std::string> more, const std::string& why) {
    more.insert(more.end(), bf16.begin(), bf16.end());
    more.insert(more.end(), {"--checkpoint.resume=" + Path("a"), "--train.steps=20"});
    const Result run = Train("b", more);
    EXPECT_EQ(run.exit_code, 2) << run;
    EXPECT_THAT(run.err, AllOf(HasSubstr(why), HasSubstr("--init_from=" + Path("a"))));
  };
  refused({"--optim.master_weights=false"}, "master_weights = true");
  refused({"--optim.state_dtype=bf16"}, "state_dtype = f32");
}

TEST(SampleGpt, ExplainsBadInput) {
  const Result run = RunProgram({"models/sample_gpt", "--checkpoint=/nonexistent"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr("/nonexistent"));
}

}  // namespace
}  // namespace lockstep
