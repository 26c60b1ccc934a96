// Elastic runs: a few hits of elastic_soak.py, without a time limit; run that itself for many.
#include <gmock/gmock-matchers.h>

#include "core/io/file.h"
#include "tests/subprocess.h"

namespace lockstep {
namespace {

std::vector<std::string> Soak(std::vector<std::string> more) {
  std::vector<std::string> command = {"tests/dist/launch/elastic_soak.py", "--launch=tools/launch",
                                      "--train_gpt=models/train_gpt", "--median=0", "--most=0"};
  command.insert(command.end(), more.begin(), more.end());
  return command;
}

TEST(Elastic, KilledRanksAndAStoppedOneAreReplacedAndTheRunEndsAsIfNothingHadHappened) {
  const Result r = RunProgram(Soak({"--kills=10", "--stops=1", "--heartbeat=5"}));
  EXPECT_EQ(r.exit_code, 0) << r.out << r.err;
  EXPECT_THAT(r.out, testing::HasSubstr("all ok"));
}

// What is kept besides the weights: the f32 originals and the loss scale, biases of routers and
// their loads, the range of losses.
TEST(Elastic, EverythingThatAStepDependsOnIsKept) {
  const std::vector<std::vector<std::string>> runs = {
      {"--train.precision=fp16", "--optim.master_weights=true", "--train.spike=8"},
      {"--model.n_expert=4", "--model.router=sigmoid", "--train.precision=bf16",
       "--train.numerics=portable", "--optim.name=muon"},
      // Layers that compute in parts, though no other process has any of them.
      {"--virtual.tp=2", "--virtual.cp=2"}};
  for (const auto& options : runs) {
    std::vector<std::string> more = {"--kills=5", "--stops=0"};
    for (const std::string& option : options) more.push_back("--option=" + option);
    const Result r = RunProgram(Soak(more));
    EXPECT_EQ(r.exit_code, 0) << r.out << r.err;
  }
}

// The state then is in the copies of parts that ranks have of each other. The undisturbed run has
// as many processes as a copy of the model.
TEST(Elastic, RanksHaveDifferentPartsOfTheModel) {
  const std::vector<std::vector<std::string>> runs = {
      {"--stops=1", "--heartbeat=5", "--option=--parallel.shard=full"},
      {"--option=--parallel.shard=optimizer", "--option=--train.precision=fp16",
       "--option=--optim.master_weights=true", "--option=--train.spike=8"},
      {"--option=--parallel.shard=gradients", "--option=--parallel.shard_ranks=2"},
      {"--stops=1", "--heartbeat=5", "--straight=2", "--option=--parallel.tp=2"},
      {"--straight=2", "--option=--parallel.pp=2"}};
  for (const auto& options : runs) {
    std::vector<std::string> more = {"--kills=6", "--stops=0",
                                     "--option=--checkpoint.sharded=false"};
    more.insert(more.end(), options.begin(), options.end());
    const Result r = RunProgram(Soak(more));
    EXPECT_EQ(r.exit_code, 0) << options.back() << "\n" << r.out << r.err;
  }
}

TEST(Elastic, AProcessThatOutlivesManyWorldsDoesNotGrow) {
  const Result r = RunProgram(Soak({"--kills=24", "--stops=0", "--spare"}));
  EXPECT_EQ(r.exit_code, 0) << r.out << r.err;
}

// On two machines, as namespaces of the network.
TEST(Elastic, OnTwoMachines) {
  std::vector<std::string> command =
      Soak({"--kills=5", "--stops=1", "--heartbeat=5", "--stop_launcher", "--steps=4000"});
  command[0] = "tests/dist/launch/elastic_machines.sh";
  const Result r = RunProgram(command);
  if (r.exit_code == 77) GTEST_SKIP() << r.err;
  EXPECT_EQ(r.exit_code, 0) << r.out << r.err;
}

// A loop of one's own: its second process kills itself in the middle.
TEST(Elastic, AProgramOfOnesOwn) {
  const std::string folder = testing::TempDir();
  const auto run = [&](std::vector<std::string> command, const std::string& file) {
    command.push_back(folder + file);
    const Result r = RunProgram(command);
    EXPECT_EQ(r.exit_code, 0) << r.out << r.err;
    return r.err;
  };
  const std::string killed = run(
      {"tools/launch", "--elastic", "--nproc=3", "--", "bash", "-c",
       "if [ $RANK$LOCKSTEP_RESTARTS = 10 ]; then (sleep 0.5; kill -9 $$) & fi; exec \"$0\" \"$@\"",
       "models/examples/small_gpt_elastic"},
      "elastic");
  EXPECT_THAT(killed, testing::HasSubstr("starting process 1 again"));
  run({"models/examples/small_gpt_data"}, "alone");
  EXPECT_TRUE(ReadFile(folder + "elastic") == ReadFile(folder + "alone"));
}

}  // namespace
}  // namespace lockstep
