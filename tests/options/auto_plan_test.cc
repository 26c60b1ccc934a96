// train_gpt --auto: what it chooses is a run like any other, which can be repeated and goes on.
#include <gmock/gmock-matchers.h>

#include "core/error.h"
#include "core/io/file.h"
#include "tests/options/option_runs.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class AutoPlan : public OptionRuns {
 protected:
  void SetUp() override {
    out_ = Path(testing::UnitTest::GetInstance()->current_test_info()->name());
    RemoveTree(out_);
  }

  static Arguments Command(const std::string& out, const Arguments& more) {
    Arguments all = {"models/train_gpt",
                     "--threads=1",
                     "--auto",
                     "--model.n_layer=2",
                     "--model.n_head=2",
                     "--model.n_embd=16",
                     "--model.block_size=16",
                     "--train.steps=6",
                     "--train.eval_batches=1",
                     "--checkpoint.every=2",
                     "--out_dir=" + out,
                     "--data.path=" + Path("other.txt"),
                     "--optim.warmup=1",
                     "--optim.schedule=constant"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  // Its last checkpoint, perhaps in parts.
  static std::string State(const std::string& out) {
    std::string state;
    for (const std::string& file : ListDirectory(out + "/latest")) {
      if (file.ends_with(".safetensors")) state += file + ReadFile(out + "/latest/" + file);
    }
    EXPECT_NE(state, "");
    return state;
  }
  // Its config.toml, without --auto, makes the same run.
  void ExpectRepeats(const std::string& nproc) const {
    const std::string again = out_ + "-again";
    RemoveTree(again);
    const Result run = RunProgram(
        {"models/train_gpt", out_ + "/config.toml", "--nproc=" + nproc, "--out_dir=" + again});
    ASSERT_EQ(run.exit_code, 0) << run;
    EXPECT_TRUE(State(again) == State(out_));
  }
  std::string Toml() const { return ReadFile(out_ + "/config.toml"); }

  std::string out_;
};

// As many sequences as without a plan, on two ranks that agree.
TEST_F(AutoPlan, TwoRanksTrainThePlanOfTheFirst) {
  const Result run = RunProgram(Command(out_, {"--nproc=2"}));
  ASSERT_EQ(run.exit_code, 0) << run;
  EXPECT_THAT(run.out, AllOf(HasSubstr("2 CPU ranks"), HasSubstr(" fit\n"), HasSubstr("best: --"),
                             HasSubstr("--train.global_batch_size=32  # as many sequences a step"),
                             HasSubstr("--train.batch_size="), HasSubstr("x 16 tokens")));
  EXPECT_THAT(Toml(), HasSubstr("\nglobal_batch_size = 32\n"));
  ExpectRepeats("2");
  // The same command goes on, and does not choose again.
  const Result finished = RunProgram(Command(out_, {"--nproc=2"}));
  EXPECT_NE(finished.exit_code, 0) << finished;
  EXPECT_THAT(finished.out,
              AllOf(HasSubstr("with the plan of the run in"), Not(HasSubstr("best"))));
  EXPECT_THAT(finished.err, HasSubstr("finished"));
  const Result longer = RunProgram(Command(out_, {"--nproc=2", "--train.steps=8"}));
  ASSERT_EQ(longer.exit_code, 0) << longer;
  EXPECT_THAT(longer.out, AllOf(HasSubstr("with the plan of the run in"), HasSubstr("(step 6)")));
  ExpectRepeats("2");
}

TEST_F(AutoPlan, WhatTheUserWroteStays) {
  const Result run = RunProgram(
      Command(out_, {"--nproc=2", "--parallel.shard=optimizer", "--train.global_batch_size=8",
                     "--train.batch_size=2", "--train.recompute=block", "--parallel.tp=1"}));
  ASSERT_EQ(run.exit_code, 0) << run;
  for (const char* line : {"\nshard = \"optimizer\"\n", "\nglobal_batch_size = 8\n",
                           "\nbatch_size = 2\n", "\nrecompute = \"block\"\n", "\ntp = 1\n"}) {
    EXPECT_THAT(Toml(), HasSubstr(line));
  }
  ExpectRepeats("2");
}

TEST_F(AutoPlan, OneProcessPlansToo) {
  const Result dry = RunProgram(Command(out_, {"--dry_run"}));
  ASSERT_EQ(dry.exit_code, 0) << dry;
  EXPECT_THAT(dry.out, AllOf(HasSubstr("1 CPU rank "), HasSubstr("dry run")));
  EXPECT_FALSE(PathExists(out_));
  const Result run = RunProgram(Command(out_, {}));
  ASSERT_EQ(run.exit_code, 0) << run;
  ExpectRepeats("1");
}

TEST_F(AutoPlan, WhatCannotFitIsRefusedWithWhatIsNearest) {
  const Result run =
      RunProgram({"models/train_gpt", "--auto", "--model.preset=llama-3.1-405b",
                  "--data.path=" + Path("documents.bin"), "--nproc=2", "--out_dir=" + out_});
  EXPECT_EQ(run.exit_code, 2) << run;
  EXPECT_THAT(run.err, AllOf(HasSubstr("--auto found no plan for these ranks"),
                             HasSubstr("memory: weights, gradients and optimizer state"),
                             HasSubstr(" lacks "), HasSubstr("Of the nearest, ")));
  EXPECT_FALSE(PathExists(out_));
}

TEST_F(AutoPlan, WhatItCannotDoIsRefused) {
  const auto error = [&](const Arguments& more) {
    const Result run = RunProgram(Command(out_, more));
    EXPECT_EQ(run.exit_code, 2) << run;
    return run.err;
  };
  EXPECT_THAT(error({"--train.grad_accum=2"}),
              AllOf(HasSubstr("train.grad_accum = 2"), HasSubstr("train.global_batch_size")));
  EXPECT_THAT(error({"--dist.elastic"}), HasSubstr("--auto plans for one"));
  EXPECT_THAT(error({"--sweep=seed=1,2"}), HasSubstr("sweep over its config.toml"));
  EXPECT_THAT(error({"--eval_only", "--init_from=there"}), HasSubstr("leave --auto out"));
}

}  // namespace
}  // namespace lockstep
