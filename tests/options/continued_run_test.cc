// What a run leaves when it ends otherwise than at its last step, and how it goes on from there.
#include <gmock/gmock-matchers.h>
#include <signal.h>

#include <filesystem>

#include "core/error.h"
#include "core/io/file.h"
#include "data/token_file.h"
#include "tests/options/option_runs.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class ContinuedRun : public OptionRuns {
 protected:
  void SetUp() override {
    out_ = Path(testing::UnitTest::GetInstance()->current_test_info()->name());
    RemoveTree(out_);
  }

  // A small model: a thousand steps take a fraction of a second.
  static Arguments Command(const Arguments& more) {
    Arguments all = {"models/train_gpt",        "--threads=1",
                     "--model.n_layer=1",       "--model.n_head=2",
                     "--model.n_embd=16",       "--model.block_size=16",
                     "--train.batch_size=4",    "--train.eval_batches=1",
                     "--train.sample_tokens=0", "--train.eval_every=2",
                     "--checkpoint.every=2",    "--data.path=" + Path("other.txt")};
    for (const std::string& argument : more) {
      std::erase_if(all, [&](const std::string& a) {
        return a.starts_with(argument.substr(0, argument.find('=') + 1));
      });
    }
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  static Result Run(const Arguments& more) { return RunProgram(Command(more)); }
  static Arguments Endless(const std::string& out) {
    return Command({"--train.steps=1000000", "--train.eval_every=0", "--checkpoint.every=0",
                    "--train.log_every=1", "--out_dir=" + out});
  }
  // A script, whose "$@" is the program.
  static Arguments InShell(const std::string& script, const Arguments& command) {
    Arguments all = {"/bin/bash", "-c", script, "bash"};
    all.insert(all.end(), command.begin(), command.end());
    return all;
  }
  static Json State(const std::string& out) {
    return Json::parse(ReadFile(out + "/latest/trainer_state.json"));
  }

  std::string out_;
};

TEST_F(ContinuedRun, ACheckpointToResumeFromIsTakenOnce) {
  const std::string first = out_ + "/first", second = out_ + "/second";
  ASSERT_EQ(Run({"--train.steps=4", "--out_dir=" + first}).exit_code, 0);
  const Arguments longer = {"--train.steps=8", "--checkpoint.resume=" + first,
                            "--out_dir=" + second};
  Result run = Run(longer);
  ASSERT_EQ(run.exit_code, 0) << run;
  EXPECT_THAT(run.out, HasSubstr("resuming from " + first + "/checkpoints/step-00000004"));
  run = Run(longer);
  EXPECT_EQ(run.exit_code, 2) << run;
  EXPECT_THAT(run.err, HasSubstr("holds a finished run of this configuration (8 steps)"));
  // Its file does not accept other options.
  const std::string file = second + "/config.toml";
  run = RunProgram({"models/train_gpt", file, "--optim.lr=1"});
  EXPECT_EQ(run.exit_code, 2) << run;
  EXPECT_THAT(run.err, HasSubstr("optim.lr: 0.002 -> 1"));
  // Nor does it still want where it began.
  RenameDurably(first, out_ + "/moved");
  RemoveTree(second + "/latest");
  RemoveTree(second + "/checkpoints/step-00000008");
  RemoveTree(second + "/DONE");
  run = RunProgram({"models/train_gpt", file});
  EXPECT_EQ(run.exit_code, 0) << run;
  EXPECT_THAT(run.out, HasSubstr("resuming from " + second + "/checkpoints/step-00000006"));
}

TEST_F(ContinuedRun, WhatWasEditedInItsFileIsTold) {
  ASSERT_EQ(Run({"--train.steps=4", "--out_dir=" + out_}).exit_code, 0);
  RemoveTree(out_ + "/checkpoints/step-00000004");
  RemoveTree(out_ + "/DONE");
  const std::string file = out_ + "/config.toml", was = "\nlr = 0.002";
  std::string toml = ReadFile(file);
  ASSERT_NE(toml.find(was), toml.npos) << toml;
  WriteFileAtomically(file, toml.replace(toml.find(was), was.size(), "\nlr = 0.003"));
  const Result run = RunProgram({"models/train_gpt", file});
  EXPECT_EQ(run.exit_code, 0) << run;
  EXPECT_THAT(run.out, HasSubstr("optim.lr: 0.002 -> 0.003"));
}

// Whose default follows from the batch, and may in another version follow otherwise: bits depend on
// it, so it stands in the run's file, and goes on where nobody asks for another.
TEST_F(ContinuedRun, KeepsTheLossChunkThatItBeganWith) {
  const std::string second = out_ + "/second", third = out_ + "/third";
  const auto chunk = [](const std::string& out) {
    const std::string toml = ReadFile(out + "/config.toml"), key = "\nloss_chunk = ";
    return std::stoi(toml.substr(toml.find(key) + key.size()));
  };
  ASSERT_EQ(Run({"--train.steps=4", "--train.loss_chunk=24", "--out_dir=" + out_}).exit_code, 0);
  EXPECT_EQ(chunk(out_), 24);
  RemoveTree(out_ + "/checkpoints/step-00000004");
  RemoveTree(out_ + "/DONE");
  Result run = Run({"--train.steps=4", "--train.loss_chunk=32", "--out_dir=" + out_});
  EXPECT_EQ(run.exit_code, 2) << run;
  EXPECT_THAT(run.err, HasSubstr("train.loss_chunk: 24 -> 32"));
  run = Run({"--train.steps=4", "--out_dir=" + out_});
  EXPECT_EQ(run.exit_code, 0) << run;
  EXPECT_THAT(run.out, AllOf(HasSubstr("step-00000002"), Not(HasSubstr("loss_chunk"))));
  EXPECT_EQ(chunk(out_), 24);
  run = Run({"--train.steps=6", "--checkpoint.resume=" + out_, "--out_dir=" + second});
  EXPECT_EQ(run.exit_code, 0) << run;
  EXPECT_EQ(chunk(second), 24);
  ASSERT_EQ(Run({"--train.steps=2", "--out_dir=" + third}).exit_code, 0);
  EXPECT_EQ(chunk(third), 4096);
}

// Whose past steps are those of a run that was so long from the start.
TEST_F(ContinuedRun, GoesOnWithOtherStepsAlone) {
  const std::string straight = out_ + "/straight", longer = out_ + "/longer";
  const auto run = [](const std::string& out, const std::string& steps, Arguments more = {}) {
    more.insert(more.end(), {"--optim.schedule=constant", "--optim.warmup=2",
                             "--train.steps=" + steps, "--out_dir=" + out});
    return Run(more);
  };
  ASSERT_EQ(run(straight, "8").exit_code, 0);
  ASSERT_EQ(run(longer, "4").exit_code, 0);
  Result again = run(longer, "4");
  EXPECT_EQ(again.exit_code, 2) << again;
  EXPECT_THAT(again.err, AllOf(HasSubstr("holds a finished run of this configuration (4 steps)"),
                               HasSubstr("--train.steps=N")));
  again = run(longer, "8");
  EXPECT_EQ(again.exit_code, 0) << again;
  EXPECT_THAT(again.out, AllOf(HasSubstr("train.steps: 4 -> 8"), HasSubstr("step 8/8")));
  EXPECT_EQ(ReadFile(longer + "/latest/model.safetensors"),
            ReadFile(straight + "/latest/model.safetensors"));
  EXPECT_EQ(run(longer, "8").exit_code, 2) << "it is finished again";
  again = run(longer, "6");
  EXPECT_EQ(again.exit_code, 2) << again;
  EXPECT_THAT(again.err, HasSubstr("is at step 8, and this run ends at step 6"));
  again = run(longer, "10", {"--optim.lr=0.001"});
  EXPECT_EQ(again.exit_code, 2) << again;
  EXPECT_THAT(again.err, AllOf(HasSubstr("train.steps: 8 -> 10"), HasSubstr("optim.lr: ")));
}

TEST_F(ContinuedRun, SaysWhereItsPastWouldHaveBeenOtherwise) {
  ASSERT_EQ(Run({"--train.steps=4", "--out_dir=" + out_}).exit_code, 0);
  const Arguments longer = {"--train.steps=8", "--out_dir=" + out_};
  const char* const past = "in the past: step 2 had the learning rate ";
  Result run = Run(longer);
  EXPECT_EQ(run.exit_code, 2) << run;
  EXPECT_THAT(run.err, AllOf(HasSubstr("train.steps: 4 -> 8"), HasSubstr(past),
                             HasSubstr("--checkpoint.resume=" + out_)));
  Arguments accepted = longer;
  accepted.push_back("--checkpoint.resume=" + out_);
  run = Run(accepted);
  EXPECT_EQ(run.exit_code, 0) << run;
  EXPECT_THAT(run.out, AllOf(HasSubstr("train.steps: 4 -> 8"), HasSubstr(past)));
  // Of a decay that begins later.
  const std::string wsd = out_ + "/wsd";
  const auto with_decay = [&](const std::string& steps) {
    return Run({"--optim.schedule=wsd", "--optim.warmup=1", "--optim.decay_steps=20",
                "--optim.weight_decay_schedule=linear", "--train.steps=" + steps,
                "--out_dir=" + wsd});
  };
  ASSERT_EQ(with_decay("4").exit_code, 0);
  EXPECT_EQ(with_decay("8").exit_code, 0);
}

// A tenth of the steps, where it is left open: of those that the run began with.
TEST_F(ContinuedRun, KeepsTheWarmupThatItBeganWith) {
  const auto run = [&](const std::string& steps, const Arguments& more = {}) {
    Arguments all = {"--optim.schedule=constant", "--train.steps=" + steps, "--out_dir=" + out_};
    all.insert(all.end(), more.begin(), more.end());
    return Run(all);
  };
  ASSERT_EQ(run("20").exit_code, 0);
  for (const char* steps : {"40", "60"}) {  // also as the file of a continued run has it
    const Result longer = run(steps);
    EXPECT_EQ(longer.exit_code, 0) << longer;
    EXPECT_THAT(longer.out, AllOf(HasSubstr("step "), Not(HasSubstr("optim.warmup"))));
    EXPECT_THAT(ReadFile(out_ + "/config.toml"), HasSubstr("\nwarmup = 2\n"));
  }
  const Result other = run("80", {"--optim.warmup=4"});
  EXPECT_EQ(other.exit_code, 2) << other;
  EXPECT_THAT(other.err, HasSubstr("optim.warmup: 2 -> 4"));
}

TEST_F(ContinuedRun, CountsSamplesWhereTheBatchChanges) {
  ASSERT_EQ(Run({"--train.steps=4", "--out_dir=" + out_}).exit_code, 0);
  EXPECT_EQ(State(out_)["tokens_seen"], 4 * 4 * 16);
  const Arguments wider = {"--train.steps=6", "--train.batch_size=8", "--out_dir=" + out_};
  Result run = Run(wider);
  EXPECT_EQ(run.exit_code, 2) << run;  // another configuration
  Arguments chosen = wider;
  chosen.push_back("--checkpoint.resume=" + out_);
  run = Run(chosen);
  EXPECT_EQ(run.exit_code, 0) << run;
  EXPECT_THAT(run.err, HasSubstr("64 tokens a step"));
  EXPECT_EQ(State(out_)["tokens_seen"], 4 * 4 * 16 + 2 * 8 * 16);
}

// A loss on other validation data is neither better nor worse.
TEST_F(ContinuedRun, TheBestIsAmongLossesOnTheSameData) {
  ASSERT_EQ(Run({"--train.steps=8", "--optim.lr=0.05", "--out_dir=" + out_}).exit_code, 0);
  const double before = State(out_)["best_val_loss"];
  const Result run = Run({"--train.steps=10", "--optim.lr=0.05", "--train.eval_batches=2",
                          "--checkpoint.resume=" + out_, "--out_dir=" + out_});
  ASSERT_EQ(run.exit_code, 0) << run;
  EXPECT_NE(State(out_)["best_val_loss"], before);
  EXPECT_EQ(std::filesystem::read_symlink(out_ + "/best"), "checkpoints/step-00000010");
  EXPECT_THAT(run.out, HasSubstr("(best)"));
}

TEST_F(ContinuedRun, ADecayThatBeginsAgainIsTold) {
  ASSERT_EQ(Run({"--train.steps=20", "--out_dir=" + out_}).exit_code, 0);
  const Result longer =
      Run({"--train.steps=60", "--checkpoint.resume=" + out_, "--out_dir=" + out_ + "2"});
  EXPECT_THAT(longer.err, AllOf(HasSubstr("the learning rate was"), HasSubstr("at step 20"),
                                HasSubstr("--optim.schedule=constant")));
  const Result cut =
      Run({"--optim.decay_steps=100", "--train.steps=10", "--out_dir=" + out_ + "3"});
  EXPECT_THAT(cut.err,
              AllOf(HasSubstr("optim.decay_steps = 100"), HasSubstr("--optim.decay_steps=0")));
  EXPECT_THAT(Run({"--train.steps=10", "--out_dir=" + out_ + "4"}).err,
              Not(HasSubstr("learning rate")));
}

TEST_F(ContinuedRun, SignalsOfOneSecondAreOne) {
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) {
    RemoveTree(out_);
    Subprocess program(Endless(out_));
    program.WaitForOutput("step ");
    program.Signal(number);
    program.Signal(number);
    const Result run = program.Wait();
    EXPECT_EQ(run.exit_code, 128 + number) << run;
    EXPECT_THAT(run.out, HasSubstr("checkpoint saved"));
    EXPECT_TRUE(PathExists(out_ + "/latest/DONE"));
  }
}

TEST_F(ContinuedRun, UnderNohupAHangupIsIgnored) {
  Subprocess program(InShell("trap '' HUP; exec \"$@\"", Endless(out_)));
  program.WaitForOutput("step ");
  program.Signal(SIGHUP);
  program.WaitForOutput(" 200/");
  program.Signal(SIGINT);
  EXPECT_EQ(program.Wait().exit_code, 128 + SIGINT);
}

TEST_F(ContinuedRun, SavesWhenNobodyReadsItsOutput) {
  const std::string script = "\"$@\" | head -n 20 > /dev/null; exit ${PIPESTATUS[0]}";
  for (const char* ranks : {"1", "2"}) {
    RemoveTree(out_);
    Arguments command = Endless(out_);
    if (*ranks == '2') command.insert(command.end(), {"--nproc", ranks});
    const Result run = RunProgram(InShell(script, command));
    EXPECT_EQ(run.exit_code, 128 + SIGPIPE) << run;
    EXPECT_TRUE(PathExists(out_ + "/latest/DONE")) << run;
  }
}

TEST_F(ContinuedRun, ClosedStreamsReachNoFile) {
  const Result run = RunProgram(
      InShell("exec \"$@\" <&- >&- 2>&-", Command({"--train.steps=4", "--out_dir=" + out_})));
  EXPECT_EQ(run.exit_code, 0) << run;
  EXPECT_THAT(ReadFile(out_ + "/run.lock"), Not(HasSubstr("step")));
  TrainingRun files;
  files.folder = out_;
  EXPECT_EQ(files.Lines("metrics.jsonl").size(), 5u);
}

TEST_F(ContinuedRun, AFolderOfAModelIsNoRunFolder) {
  ASSERT_EQ(Run({"--train.steps=2", "--out_dir=" + out_}).exit_code, 0);
  const std::string model = out_ + "/checkpoints/step-00000002";
  const Result run = Run({"--train.steps=2", "--init_from=" + model, "--out_dir=" + model});
  EXPECT_EQ(run.exit_code, 2) << run;
  EXPECT_THAT(run.err, AllOf(HasSubstr("is the folder of a model"), HasSubstr("--out_dir=")));
  EXPECT_FALSE(PathExists(model + "/run.lock"));
}

TEST_F(ContinuedRun, ACopyWithFoldersForLinksGoesOn) {
  namespace fs = std::filesystem;
  const Arguments command = {"--train.steps=4", "--out_dir=" + out_};
  const std::string steps = out_ + "/checkpoints/step-0000000", latest = out_ + "/latest";
  const auto copy_to_latest = [&](const std::string& from) {
    RemoveTree(out_ + "/DONE");
    RemoveTree(latest);
    fs::copy(from, latest, fs::copy_options::recursive);
  };
  ASSERT_EQ(Run(command).exit_code, 0);
  copy_to_latest(steps + "2");
  RemoveTree(steps + "4");
  Result run = Run(command);
  EXPECT_EQ(run.exit_code, 0) << run;
  EXPECT_THAT(run.err, HasSubstr(latest + " was a copy of"));
  EXPECT_EQ(fs::read_symlink(latest).filename(), "step-00000004");
  // The only copy that is whole is not removed for one that is not.
  copy_to_latest(steps + "4");
  fs::resize_file(steps + "4/model.safetensors", 1000);
  run = Run(command);
  EXPECT_EQ(run.exit_code, 2) << run;
  EXPECT_THAT(run.err, AllOf(HasSubstr(latest + " is a folder, where a run has a link"),
                             HasSubstr("model.safetensors")));
  EXPECT_TRUE(PathExists(latest + "/DONE"));
  // One that was copied alone is where it belongs.
  RemoveTree(out_ + "/checkpoints");
  run = Run(command);
  EXPECT_EQ(run.exit_code, 0) << run;
  EXPECT_THAT(run.out, HasSubstr("(step 4, the last one)"));
  EXPECT_TRUE(fs::is_symlink(latest) && PathExists(steps + "4/DONE"));
}

TEST_F(ContinuedRun, TheFileOfACopyNamesTheOriginal) {
  namespace fs = std::filesystem;
  const std::string one = out_ + "/one", two = out_ + "/two";
  ASSERT_EQ(Run({"--train.steps=4", "--out_dir=" + one}).exit_code, 0);
  fs::copy(one, two, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  Result run = RunProgram({"models/train_gpt", two + "/config.toml"});
  EXPECT_EQ(run.exit_code, 2) << run;
  EXPECT_THAT(run.err, AllOf(HasSubstr("add --out_dir=" + two), HasSubstr("--out_dir=" + one)));
  // Any other file may lie beside one that is called checkpoints.
  RenameDurably(two + "/config.toml", two + "/small.toml");
  run = RunProgram({"models/train_gpt", two + "/small.toml", "--dry_run"});
  EXPECT_EQ(run.exit_code, 0) << run;
}

TEST_F(ContinuedRun, ItsFolderMayBeSpelledOtherwise) {
  ASSERT_EQ(Run({"--train.steps=4", "--out_dir=" + out_}).exit_code, 0);
  RemoveTree(out_ + "/DONE");  // as after a signal in the last evaluation
  const Result run = Run({"--train.steps=4", "--out_dir=" + out_,
                          "--checkpoint.resume=" + ParentPath(out_) + "/./" + BaseName(out_)});
  EXPECT_EQ(run.exit_code, 0) << run;
}

TEST_F(ContinuedRun, AFolderWithoutItsCheckpointsHasNothingToResume) {
  ASSERT_EQ(Run({"--train.steps=4", "--out_dir=" + out_ + "/one"}).exit_code, 0);
  const Arguments from = {"--train.steps=4", "--checkpoint.resume=" + out_ + "/one",
                          "--out_dir=" + out_ + "/two"};
  Result run = Run(from);
  EXPECT_EQ(run.exit_code, 2) << run;
  EXPECT_THAT(run.err, AllOf(HasSubstr("is at step 4"), HasSubstr("--train.steps=N")));
  RemoveTree(out_ + "/one/checkpoints");
  run = Run(from);
  EXPECT_EQ(run.exit_code, 2) << run;
  EXPECT_THAT(run.err, HasSubstr("no checkpoint is left in it"));
}

TEST_F(ContinuedRun, WhatItWritesIsNotItsText) {
  const std::string data = out_ + "/data", text = ReadFile(Path("other.txt"));
  for (const std::string& out : {data + "/run", data}) {
    MakeDirectories(out);
    WriteFileAtomically(out + "/text.txt", text + BaseName(out));
    const Arguments command = {"--train.steps=4", "--log.trace=1:2", "--data.path=" + data,
                               "--out_dir=" + out};
    Result run = Run(command);
    ASSERT_EQ(run.exit_code, 0) << run;
    RemoveTree(out + "/DONE");
    RemoveTree(out + "/checkpoints/step-00000004");
    run = Run(command);
    EXPECT_EQ(run.exit_code, 0) << run;
  }
}

TEST_F(ContinuedRun, ValidationFilesAloneAreNotTrainedOn) {
  const std::string tokens = out_ + "/tokens", out = "--out_dir=" + out_ + "/a";
  MakeDirectories(tokens);
  data::WriteTokenFile(tokens + "/val.bin", data::TokenFormat::kNanoGpt,
                       std::vector<int32_t>(1000, 1));
  for (const std::string& path : {tokens, tokens + "/*.bin"}) {
    const Result run = Run({"--train.steps=2", "--data.path=" + path, out});
    EXPECT_EQ(run.exit_code, 2) << run;
    EXPECT_THAT(run.err, HasSubstr("there is none to train on"));
  }
  const std::string alone = "--data.path=" + tokens + "/val.bin";
  EXPECT_EQ(Run({"--train.steps=2", alone, out}).exit_code, 0);
  // They can be evaluated.
  Arguments evaluation = Command({"--init_from=" + out_ + "/a/latest", "--data.path=" + tokens});
  evaluation.push_back("--eval_only");
  const Result run = RunProgram(evaluation);
  EXPECT_EQ(run.exit_code, 0) << run;
}

TEST_F(ContinuedRun, ACheckpointOfAnotherRunIsRefused) {
  namespace fs = std::filesystem;
  const std::string one = out_ + "/one", two = out_ + "/two", step = "/checkpoints/step-00000004";
  for (const auto& [out, seed] : {std::pair(one, "1"), {two, "2"}}) {
    ASSERT_EQ(Run({"--train.steps=4", StrCat("--seed=", seed), "--out_dir=" + out}).exit_code, 0);
  }
  RemoveTree(two + step);
  RemoveTree(two + "/DONE");
  fs::copy(one + step, two + step, fs::copy_options::recursive);
  const Result run = Run({"--train.steps=4", "--seed=2", "--out_dir=" + two});
  EXPECT_EQ(run.exit_code, 2) << run;
  EXPECT_THAT(run.err, AllOf(HasSubstr(two + step), HasSubstr("another run, with seed = 1")));
}

TEST_F(ContinuedRun, ARunWhoseFolderIsMovedEnds) {
  Arguments command = Endless(out_);
  std::erase(command, "--checkpoint.every=0");
  command.push_back("--checkpoint.every=200");
  Subprocess program(command);
  program.WaitForOutput(" 5/");
  RenameDurably(out_, out_ + "-moved");
  const Result run = program.Wait();
  EXPECT_EQ(run.exit_code, 1) << run;
  EXPECT_THAT(run.err, HasSubstr(out_ + " was moved or removed"));
  EXPECT_FALSE(PathExists(out_ + "/checkpoints"));
  RemoveTree(out_ + "-moved");
}

TEST_F(ContinuedRun, APipelineThatCollectsIts16BitWeightsGoesOn) {
  const Result run =
      Run({"--train.steps=6", "--model.n_layer=2", "--train.precision=bf16", "--parallel.pp=2",
           "--train.grad_accum=2", "--checkpoint.sharded=false", "--nproc=2", "--out_dir=" + out_});
  EXPECT_EQ(run.exit_code, 0) << run;
}

TEST_F(ContinuedRun, TokensThatWereChangedAreNoticed) {
  namespace fs = std::filesystem;
  const std::string tokens = out_ + "-tokens";
  RemoveTree(tokens);
  fs::create_directories(tokens);
  std::vector<int32_t> ids(200000);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i % 50);
  data::WriteTokenFile(tokens + "/a.bin", data::TokenFormat::kNanoGpt, ids);
  const auto run = [&](const std::string& path, int steps) {
    return Run({"--train.steps=8", "--out_dir=" + out_, "--data.path=" + path,
                StrCat("--train.steps=", steps), "--checkpoint.resume=auto"});
  };
  const auto cut_off = [&] {  // before its last steps
    for (const char* name : {"/latest", "/checkpoints/step-00000008", "/DONE"}) {
      RemoveTree(out_ + name);
    }
  };
  ASSERT_EQ(run(tokens, 8).exit_code, 0);
  EXPECT_EQ(State(out_)["data_files"].size(), 1u);
  cut_off();
  // The same bytes may have other times, and be elsewhere.
  fs::copy(tokens + "/a.bin", tokens + "/b.bin");
  RenameDurably(tokens + "/b.bin", tokens + "/a.bin");
  RenameDurably(tokens, tokens + "2");
  fs::create_directory_symlink(tokens + "2", tokens);
  Result result = run(tokens, 8);
  EXPECT_EQ(result.exit_code, 0) << result;
  cut_off();
  ids[100000] ^= 1;
  data::WriteTokenFile(tokens + "/a.bin", data::TokenFormat::kNanoGpt, ids);
  result = run(tokens, 8);
  EXPECT_EQ(result.exit_code, 2) << result;
  EXPECT_THAT(result.err, HasSubstr(tokens + "/a.bin is not what"));
  RemoveTree(tokens);
  RemoveTree(tokens + "2");
}

// What is wrong with the command line is said once, by however many ranks it would be met.
TEST_F(ContinuedRun, ErrorsOfOptionsAreSaidOnce) {
  const auto count = [](const std::string& text, const std::string& what) {
    size_t n = 0;
    for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += what.size()) ++n;
    return n;
  };
  Result run = Run({"--nproc=3", "--train.stepz=3"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_EQ(count(run.err, "--train.stepz"), 1u) << run;
  run = Run({"--nproc=3", "--init_from=nowhere", "--out_dir=" + out_});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_EQ(count(run.err, "there is no folder"), 1u) << run;
  // What is missing is told before what a folder already has.
  ASSERT_EQ(Run({"--train.steps=2", "--out_dir=" + out_}).exit_code, 0);
  run = Run({"--train.steps=2", "--data.path=nowhere.txt", "--out_dir=" + out_});
  EXPECT_THAT(run.err, HasSubstr("nowhere.txt: no such file"));
}

}  // namespace
}  // namespace lockstep
