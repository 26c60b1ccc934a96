// Sweeps as a user starts, interrupts and continues them.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <sstream>

#include "core/io/file.h"
#include "core/io/json.h"
#include "tests/subprocess.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class TrainSweep : public testing::Test {
 protected:
  void SetUp() override {
    out_ =
        JoinPath(testing::TempDir(), testing::UnitTest::GetInstance()->current_test_info()->name());
    RemoveTree(out_);
  }

  static std::vector<std::string> Command(const std::vector<std::string>& more) {
    std::vector<std::string> all = {"models/train_gpt",        "--threads=1",
                                    "--model.n_layer=1",       "--model.n_head=2",
                                    "--model.n_embd=16",       "--model.block_size=16",
                                    "--train.batch_size=4",    "--train.eval_batches=1",
                                    "--train.sample_tokens=0", "--train.eval_every=10",
                                    "--checkpoint.every=10"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::vector<std::string> Sweep(const std::string& steps) const {
    return Command({"--train.steps=" + steps, "--sweep", "optim.lr=1e-3,4e-3", "--sweep=seed=1,2",
                    "--out_dir=" + out_});
  }
  // What training gave, without times.
  static std::string Numbers(const std::string& folder) {
    std::istringstream in(ReadFile(JoinPath(folder, "metrics.jsonl")));
    std::string numbers;
    for (std::string line; std::getline(in, line);) {
      const auto j = Json::parse(line);
      for (const char* field : {"step", "loss", "grad_norm", "val_loss"}) {
        if (j.contains(field)) numbers += j[field].dump() + " ";
      }
    }
    return numbers;
  }

  std::string out_;
};

TEST_F(TrainSweep, TrainsEachCombinationAsItsOwnCommandWould) {
  const Result sweep = RunProgram(Sweep("4"));
  ASSERT_EQ(sweep.exit_code, 0) << sweep;
  // Four runs, and of them two groups, which differ in the rate.
  EXPECT_THAT(sweep.out, AllOf(HasSubstr("run 4 of 4: lr=4e-3,seed=2"), HasSubstr("optim.lr"),
                               HasSubstr("0.004"), HasSubstr(out_ + "/runs.html")));
  const std::string alone = out_ + "-alone";
  RemoveTree(alone);
  const Result run =
      RunProgram(Command({"--train.steps=4", "--optim.lr=4e-3", "--seed=2", "--out_dir=" + alone}));
  ASSERT_EQ(run.exit_code, 0) << run;
  EXPECT_EQ(Numbers(alone), Numbers(out_ + "/lr=4e-3,seed=2"));
  const std::string page = ReadFile(out_ + "/runs.html");
  for (const char* name :
       {"lr=1e-3,seed=1", "lr=1e-3,seed=2", "lr=4e-3,seed=1", "lr=4e-3,seed=2"}) {
    EXPECT_THAT(page, HasSubstr(name));
  }
  // Once more: nothing is left to train.
  const std::string before = Numbers(out_ + "/lr=1e-3,seed=1");
  const Result again = RunProgram(Sweep("4"));
  EXPECT_EQ(again.exit_code, 0) << again;
  EXPECT_THAT(again.out, AllOf(HasSubstr("lr=4e-3,seed=2: finished"), Not(HasSubstr("step 4/4"))));
  EXPECT_EQ(Numbers(out_ + "/lr=1e-3,seed=1"), before);
}

TEST_F(TrainSweep, GoesOnByTheSameCommandAfterAnInterruptionAndAKill) {
  {
    Subprocess sweep(Sweep("60"));
    sweep.WaitForOutput("step 10 |");
    sweep.Signal(SIGINT);
    const Result result = sweep.Wait();
    EXPECT_EQ(result.exit_code, 128 + SIGINT) << result;
    EXPECT_THAT(result.out, HasSubstr("the same command"));
  }
  {
    Subprocess sweep(Sweep("60"));
    sweep.WaitForOutput("run 2 of 4");
    sweep.Signal(SIGKILL);
    sweep.Wait();
  }
  const Result rest = RunProgram(Sweep("60"));
  ASSERT_EQ(rest.exit_code, 0) << rest;
  EXPECT_THAT(rest.out, HasSubstr("lr=1e-3,seed=1: finished"));
  const std::string alone = out_ + "-alone";
  for (const char* seed : {"1", "2"}) {
    RemoveTree(alone);
    const Result run = RunProgram(Command({"--train.steps=60", "--optim.lr=1e-3",
                                           std::string("--seed=") + seed, "--out_dir=" + alone}));
    ASSERT_EQ(run.exit_code, 0) << run;
    EXPECT_EQ(Numbers(alone), Numbers(out_ + "/lr=1e-3,seed=" + seed));
  }
}

TEST_F(TrainSweep, AWrongValueIsSaidBeforeAnythingIsTrained) {
  const Result wrong = RunProgram(Command({"--sweep=optim.lr=1e-3,fast", "--out_dir=" + out_}));
  EXPECT_NE(wrong.exit_code, 0);
  EXPECT_THAT(wrong.err, AllOf(HasSubstr("optim.lr"), HasSubstr("fast")));
  EXPECT_FALSE(PathExists(out_));
  const Result key = RunProgram(Command({"--sweep=optim.rate=1,2", "--out_dir=" + out_}));
  EXPECT_NE(key.exit_code, 0);
  EXPECT_THAT(key.err, HasSubstr("optim.rate"));
  EXPECT_FALSE(PathExists(out_));
}

TEST_F(TrainSweep, OtherSettingsThanThoseOfTheFolderAreRefusedByItsRun) {
  const auto command = [&](const char* steps) {
    return Command(
        {std::string("--train.steps=") + steps, "--sweep=seed=1,2", "--out_dir=" + out_});
  };
  ASSERT_EQ(RunProgram(command("2")).exit_code, 0);
  const std::string before = Numbers(out_ + "/seed=1");
  const Result other = RunProgram(command("4"));
  EXPECT_EQ(other.exit_code, 1) << other;
  EXPECT_THAT(other.err, HasSubstr("train.steps"));
  EXPECT_THAT(other.out, HasSubstr(out_ + "/seed=2"));
  EXPECT_EQ(Numbers(out_ + "/seed=1"), before);
  // Nor does a sweep share the folder of a run.
  const Result within = RunProgram(
      Command({"--train.steps=2", "--sweep=optim.lr=1e-3,2e-3", "--out_dir=" + out_ + "/seed=1"}));
  EXPECT_NE(within.exit_code, 0);
  EXPECT_THAT(within.err, HasSubstr(out_ + "/seed=1"));
}

TEST_F(TrainSweep, DrawsWithSeveralRanks) {
  const Result sweep = RunProgram(Command({"--train.steps=2", "--nproc=2", "--sweep_draws=2",
                                           "--sweep=optim.lr=1e-4..1e-2", "--out_dir=" + out_}));
  ASSERT_EQ(sweep.exit_code, 0) << sweep;
  int runs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(out_)) {
    runs += PathExists(entry.path().string() + "/DONE") ? 1 : 0;
  }
  EXPECT_EQ(runs, 2);
}

}  // namespace
}  // namespace lockstep
