// Signals at any moment of a run: an interrupted run resumes to the same bits as an undisturbed
// one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <random>
#include <thread>

#include "core/io/file.h"
#include "tests/subprocess.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::Not;
using Arguments = std::vector<std::string>;
using Environment = std::map<std::string, std::string>;

// How often each of four tests interrupts its run. For 300 in all, as before a release:
//   bazel test //tests:train_gpt_interrupt_test --test_env=LOCKSTEP_INTERRUPTS=75
int Interrupts() {
  const char* text = std::getenv("LOCKSTEP_INTERRUPTS");
  return text == nullptr ? 4 : std::atoi(text);
}

class Interrupt : public testing::Test {
 protected:
  static Arguments Command(const std::string& out, const Arguments& more) {
    Arguments all = {"models/train_gpt",        "--model.n_layer=2",     "--model.n_head=2",
                     "--model.n_embd=64",       "--model.block_size=32", "--model.dropout=0.1",
                     "--train.steps=250",       "--train.batch_size=8",  "--train.eval_every=0",
                     "--train.log_every=100",   "--optim.warmup=10",     "--checkpoint.every=100",
                     "--train.sample_tokens=0", "--train.eval_batches=1"};
    all.push_back("--out_dir=" + Path(out));
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  static std::string Path(const std::string& out) {
    return JoinPath(testing::TempDir(),
                    testing::UnitTest::GetInstance()->current_test_info()->name() + ("-" + out));
  }

  static std::string Checkpoint(const std::string& out) {
    return Path(out) + "/checkpoints/step-00000250/";
  }

  static std::string Bytes(const std::string& out) {
    return ReadFile(Checkpoint(out) + "model.safetensors") +
           ReadFile(Checkpoint(out) + "optimizer.safetensors");
  }

  // A run that is interrupted at random moments, resumed, and restarted once it has finished.
  void Check(const Arguments& more, const Environment& environment = {}) {
    RemoveTree(Path("undisturbed"));
    RemoveTree(Path("disturbed"));
    const auto begin = std::chrono::steady_clock::now();
    const Result undisturbed = RunProgram(Command("undisturbed", more));
    ASSERT_EQ(undisturbed.exit_code, 0) << undisturbed;
    const std::string bytes = Bytes("undisturbed");
    const auto whole = std::chrono::steady_clock::now() - begin;

    std::mt19937 random(20);
    for (int hit = 0, finished = 0; hit < Interrupts() || finished == 0;) {
      Subprocess program(Command("disturbed", more), environment);
      const int number = random() % 2 == 0 ? SIGINT : SIGTERM;
      if (hit < Interrupts()) {
        std::this_thread::sleep_for(whole * (random() % 1000) / 1000);
        program.Signal(number);
      }
      const Result r = program.Wait();
      // Before and after training, a signal ends the program like any other.
      const bool interrupted = r.signal == number || r.exit_code == 128 + number;
      ASSERT_TRUE(interrupted || r.exit_code == 0) << "after " << hit << " interrupts: " << r;
      EXPECT_EQ(r.err.find("cannot be preloaded"), std::string::npos) << r.err;
      hit += interrupted;
      if (PathExists(Checkpoint("disturbed") + "DONE")) {
        ASSERT_EQ(Bytes("disturbed"), bytes) << "after " << hit << " interrupts";
        RemoveTree(Path("disturbed"));
        ++finished;
      }
    }
  }
};

TEST_F(Interrupt, OneThread) { Check({"--threads=1"}); }

TEST_F(Interrupt, TwoThreads) { Check({"--threads=2"}); }

TEST_F(Interrupt, TwoRanks) {
  Check({"--nproc=2", "--threads=1", "--train.global_batch_size=8", "--train.batch_size=4",
         "--dist.reduction=ordered"});
}

// A signal while a long evaluation runs; returns metrics.jsonl.
std::string SignalDuringAnEvaluation(Arguments arguments, const std::string& folder,
                                     int exit_code) {
  const std::string text = folder + ".txt";
  std::string words;
  while (words.size() < (24 << 20)) words += "some words of a long text\n";
  WriteFileAtomically(text, words);
  arguments.insert(arguments.end(),
                   {"--threads=1", "--data.path=" + text, "--train.eval_batches=0"});
  Subprocess program(arguments);
  // The folder is there shortly before the first step.
  for (int i = 0; i < 3000 && !PathExists(folder + "/config.toml"); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  std::this_thread::sleep_for(std::chrono::seconds(1));
  program.Signal(SIGTERM);
  const Result r = program.Wait();
  EXPECT_EQ(r.exit_code, exit_code) << r;
  EXPECT_TRUE(PathExists(folder + "/latest/DONE")) << r;
  EXPECT_THAT(r.err, HasSubstr("train_gpt --eval_only")) << r;
  return ReadFile(folder + "/metrics.jsonl");
}

TEST_F(Interrupt, Evaluation) {
  for (const Arguments& ranks : {Arguments{}, {"--nproc=2", "--train.batch_size=4"}}) {
    RemoveTree(Path("run"));
    Arguments arguments = Command("run", ranks);
    arguments.push_back("--train.eval_every=250");
    EXPECT_THAT(SignalDuringAnEvaluation(arguments, Path("run"), 128 + SIGTERM),
                Not(HasSubstr("val_loss")));
  }
}

// The last step is made, and saved.
TEST_F(Interrupt, LastEvaluation) {
  RemoveTree(Path("run"));
  EXPECT_THAT(SignalDuringAnEvaluation(Command("run", {"--train.steps=1"}), Path("run"), 0),
              Not(HasSubstr("val_loss")));
  EXPECT_TRUE(PathExists(Path("run") + "/checkpoints/step-00000001/DONE"));
}

// With a foreign signal handler that runs in every thread.
TEST_F(Interrupt, UnderAProfiler) {
  Check({"--threads=2"}, {{"LD_PRELOAD", "tests/libprofiler.so"}});
}

}  // namespace
}  // namespace lockstep
