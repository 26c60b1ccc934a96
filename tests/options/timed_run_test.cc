// Runs with train.time_budget: what the clock settles is a run like any other, which can be
// repeated, killed, resumed and continued.
#include <gmock/gmock-matchers.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "core/error.h"
#include "core/io/file.h"
#include "tests/options/option_runs.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class TimedRun : public OptionRuns {
 protected:
  void SetUp() override {
    out_ = Path(testing::UnitTest::GetInstance()->current_test_info()->name());
    RemoveTree(out_);
  }

  // A small model: a thousand steps take a second or so.
  static Arguments Command(const std::string& out, const Arguments& more) {
    Arguments all = {"models/train_gpt",       "--threads=1",
                     "--model.n_layer=1",      "--model.n_head=2",
                     "--model.n_embd=16",      "--model.block_size=16",
                     "--train.batch_size=4",   "--train.eval_batches=1",
                     "--train.eval_every=500", "--checkpoint.every=100",
                     "--checkpoint.keep=1",    "--checkpoint.keep_best=false",
                     "--out_dir=" + out,       "--data.path=" + Path("other.txt")};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  static Result Run(const std::string& out, const Arguments& more) {
    return RunProgram(Command(out, more));
  }
  // The value of a line of its config.toml that counts as asked for.
  static int Settled(const std::string& out, const std::string& name) {
    const std::string toml = ReadFile(out + "/config.toml"), key = "\n" + name + " = ";
    const size_t at = toml.find(key);
    EXPECT_LT(at, toml.find("[default")) << name << " in\n" << toml;
    return at == toml.npos ? -1 : std::stoi(toml.substr(at + key.size()));
  }
  static std::string State(const std::string& out) {
    return ReadFile(out + "/latest/model.safetensors") +
           ReadFile(out + "/latest/optimizer.safetensors");
  }
  // Its config.toml makes the same steps, in one process.
  void ExpectRepeats(const std::string& out) const {
    const std::string again = out_ + "-again";
    RemoveTree(again);
    const Result run = RunProgram({"models/train_gpt", out + "/config.toml", "--out_dir=" + again});
    ASSERT_EQ(run.exit_code, 0) << run;
    EXPECT_THAT(run.out, Not(HasSubstr("the decay begins")));
    EXPECT_EQ(std::filesystem::read_symlink(again + "/latest"),
              std::filesystem::read_symlink(out + "/latest"));
    EXPECT_TRUE(State(again) == State(out));
  }
  static std::string Folder(const std::string& out, int step) {
    const std::string digits = std::to_string(step);
    return out + "/checkpoints/step-" + std::string(8 - digits.size(), '0') + digits;
  }

  std::string out_;
};

TEST_F(TimedRun, EndsInTime) {
  const auto begin = std::chrono::steady_clock::now();
  const Result run = Run(out_, {"--train.time_budget=6s"});
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  ASSERT_EQ(run.exit_code, 0) << run;
  // A tenth, and a second for a machine that runs other tests; time_budget_test is exact.
  EXPECT_GT(took.count(), 0.9 * 6 - 1);
  EXPECT_LT(took.count(), 1.1 * 6 + 1);
  const int begins = Settled(out_, "decay_start"), steps = Settled(out_, "steps");
  EXPECT_GT(begins, 0);
  EXPECT_GT(steps, begins);
  EXPECT_THAT(run.out,
              AllOf(HasSubstr("6s by the clock"), HasSubstr(" of 5s\n"),
                    HasSubstr("the decay begins after step " + std::to_string(begins) + " "),
                    HasSubstr("step " + std::to_string(steps) + "/" + std::to_string(steps))));
  // checkpoint.keep does not take it away, and it says what follows.
  const std::string kept = Folder(out_, begins);
  ASSERT_TRUE(PathExists(kept + "/DONE"));
  const auto state = Json::parse(ReadFile(kept + "/trainer_state.json"));
  EXPECT_THAT(state["config"].get<std::string>(),
              AllOf(HasSubstr("\nsteps = " + std::to_string(steps) + "\n"),
                    HasSubstr("\ndecay_start = " + std::to_string(begins) + "\n")));
  ExpectRepeats(out_);
  const Result done = Run(out_, {"--train.time_budget=5s"});
  EXPECT_EQ(done.exit_code, 2);
  EXPECT_THAT(done.err, AllOf(HasSubstr("holds a finished run"),
                              HasSubstr("with more --train.time_budget than 6s")));
}

TEST_F(TimedRun, IsContinuedFromBeforeItsDecay) {
  ASSERT_EQ(Run(out_, {"--train.time_budget=4s"}).exit_code, 0);
  const int begins = Settled(out_, "decay_start"), steps = Settled(out_, "steps");
  const Result longer = Run(out_, {"--train.time_budget=7s"});
  ASSERT_EQ(longer.exit_code, 0) << longer;
  EXPECT_THAT(longer.out, AllOf(HasSubstr("resuming from " + Folder(out_, begins)),
                                HasSubstr("train.time_budget = 7s instead of 4s"),
                                HasSubstr(std::to_string(steps - begins) + " steps of decay in")));
  EXPECT_GT(Settled(out_, "decay_start"), begins);
  EXPECT_THAT(ReadFile(out_ + "/config.toml"), HasSubstr("\ntime_budget = \"7s\"\n"));
  ExpectRepeats(out_);
}

TEST_F(TimedRun, GoesOnFromTheCheckpointThatIsNamed) {
  const std::string fork = out_ + "-fork";
  RemoveTree(fork);
  ASSERT_EQ(Run(out_, {"--train.time_budget=3s"}).exit_code, 0);
  const int begins = Settled(out_, "decay_start"), steps = Settled(out_, "steps");
  const std::string decayed = Folder(out_, steps), kept = Folder(out_, begins);
  // Of a run, the one before the decay.
  Result longer = Run(fork, {"--train.time_budget=5s", "--checkpoint.resume=" + out_});
  EXPECT_EQ(longer.exit_code, 0) << longer;
  EXPECT_THAT(longer.out, HasSubstr("resuming from " + kept));
  EXPECT_GT(Settled(fork, "decay_start"), begins);
  EXPECT_TRUE(PathExists(decayed + "/DONE"));
  // In its own folder, where the decay gives way.
  longer = Run(out_, {"--train.time_budget=6s", "--checkpoint.resume=" + kept, "--optim.clip=2"});
  EXPECT_EQ(longer.exit_code, 0) << longer;
  EXPECT_THAT(longer.out, AllOf(HasSubstr("resuming from " + kept), HasSubstr("optim.clip: "),
                                HasSubstr(std::to_string(steps - begins) + " steps of decay in")));
  // That of the longer run does not, to a run that is as long.
  const int later = Settled(out_, "decay_start");
  EXPECT_GT(later, begins);
  const Result same =
      Run(out_, {"--train.time_budget=6s", "--checkpoint.resume=" + Folder(out_, later)});
  EXPECT_EQ(same.exit_code, 2) << same;
  EXPECT_THAT(same.err, HasSubstr("which the run would overwrite"));
}

TEST_F(TimedRun, KilledRunsGoOn) {
  const Arguments time = {"--train.time_budget=10s"};
  {  // before anything is settled
    Subprocess run(Command(out_, time));
    while (!PathExists(out_ + "/latest/DONE")) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    run.Signal(SIGKILL);
    run.Wait();
  }
  EXPECT_THAT(ReadFile(out_ + "/config.toml"), HasSubstr("\nsteps = 0\n"));
  {  // and in the decay
    Subprocess run(Command(out_, time));
    run.WaitForOutput("the decay begins");
    EXPECT_THAT(run.output(), HasSubstr("resuming from"));
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    run.Signal(SIGKILL);
    run.Wait();
  }
  const int begins = Settled(out_, "decay_start"), steps = Settled(out_, "steps");
  const Result run = Run(out_, time);
  EXPECT_EQ(run.exit_code, 0) << run;
  EXPECT_THAT(run.out, Not(HasSubstr("the decay begins")));
  EXPECT_EQ(Settled(out_, "decay_start"), begins);
  EXPECT_EQ(Settled(out_, "steps"), steps);
  EXPECT_THAT(run.out, HasSubstr("trained to step " + std::to_string(steps) + " "));
  ExpectRepeats(out_);
}

// One rank's clock decides, for whatever ranks the run has.
TEST_F(TimedRun, RanksAgree) {
  for (const char* const plan : {"--parallel.shard=full", "--parallel.tp=2"}) {
    RemoveTree(out_);
    const Result run =
        Run(out_, {"--train.time_budget=5s", "--train.global_batch_size=8", plan, "--virtual.tp=2",
                   "--dist.reduction=ordered", "--checkpoint.sharded=false", "--nproc=2"});
    ASSERT_EQ(run.exit_code, 0) << run;
    // The same bits in one process, by the same file.
    const std::string again = out_ + "-one";
    RemoveTree(again);
    const Result alone =
        RunProgram({"models/train_gpt", out_ + "/config.toml", "--out_dir=" + again,
                    "--parallel.shard=none", "--parallel.tp=1"});
    ASSERT_EQ(alone.exit_code, 0) << alone;
    EXPECT_TRUE(State(again) == State(out_)) << plan;
  }
}

TEST_F(TimedRun, ABudgetChoosesARunThatRepeatsAndGoesOn) {
  const auto command = [&](const std::string& budget) {
    return Arguments{"models/train_gpt",       "--threads=1",        "--train.sample_tokens=0",
                     "--train.eval_batches=1", "--budget=" + budget, "--out_dir=" + out_};
  };
  const Result run = RunProgram(command("60000tokens"));
  ASSERT_EQ(run.exit_code, 0) << run;
  EXPECT_THAT(run.out, AllOf(HasSubstr("(chosen)"), HasSubstr("follows from depth")));
  EXPECT_GE(Settled(out_, "depth"), 1);
  ExpectRepeats(out_);
  // The same command does not choose again: that run is finished.
  const Result again = RunProgram(command("60000tokens"));
  EXPECT_NE(again.exit_code, 0) << again;
  EXPECT_THAT(again.out, Not(HasSubstr("(chosen)")));
  EXPECT_THAT(again.err, HasSubstr("finished"));
}

TEST_F(TimedRun, ABudgetOfTimeIsSettledByTheClockAndMoreOfItGoesOn) {
  const auto command = [&](const std::string& budget) {
    return Arguments{"models/train_gpt", "--train.sample_tokens=0", "--train.eval_batches=1",
                     "--budget=" + budget, "--out_dir=" + out_};
  };
  const Result run = RunProgram(command("20s"));
  ASSERT_EQ(run.exit_code, 0) << run;
  EXPECT_THAT(run.out, AllOf(HasSubstr("(chosen)"), HasSubstr("the decay begins")));
  const int depth = Settled(out_, "depth"), start = Settled(out_, "decay_start");
  EXPECT_GE(start, 1);
  ExpectRepeats(out_);
  const Result more = RunProgram(command("28s"));
  ASSERT_EQ(more.exit_code, 0) << more;
  EXPECT_THAT(more.out, AllOf(HasSubstr("thrown away"), Not(HasSubstr("(chosen)"))));
  EXPECT_EQ(Settled(out_, "depth"), depth);
  EXPECT_GT(Settled(out_, "decay_start"), start);
}

}  // namespace
}  // namespace lockstep
