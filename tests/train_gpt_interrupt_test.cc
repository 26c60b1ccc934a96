// Signals at any moment of a run: an interrupted run resumes to the same bits as an undisturbed
// one.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <random>
#include <sstream>
#include <thread>

#include "core/io/file.h"
#include "core/io/json.h"
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

// The signal comes between two steps that are printed.
TEST_F(Interrupt, TheTimesOfKernelsAreThoseOfAllSteps) {
  RemoveTree(Path("out"));
  Subprocess program(Command("out", {"--threads=1", "--train.steps=100000", "--checkpoint.every=0",
                                     "--train.log_every=100000"}),
                     {});
  const std::string metrics = Path("out") + "/metrics.jsonl";
  while (!PathExists(metrics) || ReadFile(metrics).empty()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  program.Signal(SIGTERM);
  const Result r = program.Wait();
  ASSERT_EQ(r.exit_code, 128 + SIGTERM) << r;
  std::istringstream lines(ReadFile(metrics));
  double steps_ms = 0, kernels_ms = 0;
  int64_t steps = 0;
  for (std::string line; std::getline(lines, line); ++steps) {
    const auto j = Json::parse(line);
    for (const char* phase : {"forward_ms", "backward_ms", "update_ms"}) {
      steps_ms += j.value(phase, 0.0);
    }
    const auto kernel_ms = j.value("kernel_ms", Json::object());
    for (const auto& [name, ms] : kernel_ms.items()) kernels_ms += ms.get<double>();
  }
  EXPECT_GT(steps, 2);
  EXPECT_NEAR(kernels_ms, steps_ms, 1e-6 * steps_ms);
}

// A text whose evaluation takes a while.
std::string LongText(const std::string& path) {
  std::string words;
  while (words.size() < (5 << 19)) words += "some words of a long text\n";
  WriteFileAtomically(path, words);
  return "--data.path=" + path;
}

// A container's first process gets no signal that it leaves to the system, whatever it does then.
TEST_F(Interrupt, AsTheFirstProcessOfAContainer) {
  const Arguments unshare = {"/usr/bin/unshare", "--user",      "--map-root-user", "--pid",
                             "--fork",           "--kill-child"};
  const auto contained = [&](const Arguments& program) {
    Arguments all = unshare;
    all.insert(all.end(), program.begin(), program.end());
    return all;
  };
  const Result can = RunProgram(contained({"/bin/true"}));
  if (can.exit_code != 0) GTEST_SKIP() << "no namespaces of processes here: " << can;
  // Signals the only child of unshare, which hands on how it ends.
  const auto signal_first = [](const Subprocess& program) {
    const std::string pid = std::to_string(program.pid());
    const std::string children = ReadFile("/proc/" + pid + "/task/" + pid + "/children");
    ASSERT_EQ(kill(std::stoi(children), SIGTERM), 0) << children;
  };
  RemoveTree(Path("training"));
  RemoveTree(Path("start"));
  Subprocess training(
      contained(Command("training", {"--train.log_every=1", "--train.steps=100000"})));
  training.WaitForOutput("step      5/");
  signal_first(training);
  EXPECT_EQ(training.Wait().exit_code, 128 + SIGTERM);
  EXPECT_TRUE(PathExists(Path("training") + "/latest/DONE"));
  // Before the training, there is nothing to save.
  Subprocess start(contained(Command("start", {LongText(Path("text")), "--data.tokenizer=char"})));
  for (int i = 0; i < 3000 && !PathExists(Path("start")); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  signal_first(start);
  EXPECT_EQ(start.Wait().exit_code, 128 + SIGTERM);
}

// Sends the signal to a run during its evaluation after `step`, or shortly before.
Result SignalInEvaluation(int64_t step, const Arguments& arguments, const std::string& folder) {
  Subprocess program(arguments);
  if (step > 0) {
    program.WaitForOutput("step " + std::to_string(step - 1) + " | validation loss");
  } else {  // the file is there shortly before
    program.WaitForOutput("  writes ");
    for (int i = 0; i < 3000 && !PathExists(folder + "/metrics.jsonl"); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  program.Signal(SIGTERM);
  return program.Wait();
}

// What the objects of a file say, but for times.
std::string Records(const std::string& file) {
  std::string records;
  std::istringstream in(ReadFile(file));
  for (std::string line; std::getline(in, line);) {
    const auto j = Json::parse(line);
    for (const char* key : {"step", "loss", "grad_norm", "lr", "val_loss", "text"}) {
      if (j.contains(key)) records += std::string(key) + " " + j[key].dump() + ", ";
    }
    records += "\n";
  }
  return records;
}

// Interrupted in each of its evaluations, a run makes up for it when it goes on: in the end it has
// recorded what an undisturbed one does, and none of it twice.
TEST_F(Interrupt, Evaluations) {
  const std::string text = LongText(Path("text"));
  for (const Arguments& ranks : {Arguments{}, {"--nproc=2", "--train.batch_size=4"}}) {
    RemoveTree(Path("undisturbed"));
    RemoveTree(Path("disturbed"));
    Arguments more = {text,
                      "--threads=1",
                      "--train.steps=2",
                      "--train.eval_every=1",
                      "--data.val_fraction=0.5",
                      "--train.eval_batches=0",
                      "--train.sample_every=1",
                      "--train.sample_tokens=5",
                      "--checkpoint.every=2",
                      "--checkpoint.keep_best=true"};
    more.insert(more.end(), ranks.begin(), ranks.end());
    const Result undisturbed = RunProgram(Command("undisturbed", more));
    ASSERT_EQ(undisturbed.exit_code, 0) << undisturbed;

    const Arguments command = Command("disturbed", more);
    for (const int64_t step : {0, 1, 2}) {
      const Result r = SignalInEvaluation(step, command, Path("disturbed"));
      EXPECT_EQ(r.exit_code, 128 + SIGTERM) << r;
      EXPECT_THAT(r.out, HasSubstr("To continue, run the same command again"));
      EXPECT_FALSE(PathExists(Path("disturbed") + "/DONE"));
      EXPECT_THAT(r.err,
                  HasSubstr("a signal ended the evaluation after step " + std::to_string(step)))
          << r;
      EXPECT_TRUE(PathExists(Path("disturbed") + "/latest/DONE")) << r;
    }
    const Result last = RunProgram(command);
    EXPECT_EQ(last.exit_code, 0) << last;
    EXPECT_THAT(last.out, HasSubstr("step 2 | validation loss"));
    EXPECT_THAT(last.out, Not(HasSubstr("step 1 | validation loss")));
    EXPECT_THAT(RunProgram(command).err, HasSubstr("holds a finished run"));

    for (const std::string file : {"/metrics.jsonl", "/samples.jsonl"}) {
      EXPECT_EQ(Records(Path("disturbed") + file), Records(Path("undisturbed") + file));
    }
    EXPECT_EQ(ReadFile(Path("disturbed") + "/best/model.safetensors"),
              ReadFile(Path("undisturbed") + "/best/model.safetensors"));
  }
}

// With a foreign signal handler that runs in every thread.
TEST_F(Interrupt, UnderAProfiler) {
  Check({"--threads=2"}, {{"LD_PRELOAD", "tests/libprofiler.so"}});
}

}  // namespace
}  // namespace lockstep
