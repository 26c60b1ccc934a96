// Elastic runs: a few hits of elastic_soak.py, without a time limit; run that itself for many.
#include <gmock/gmock-matchers.h>

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
       "--train.numerics=portable", "--optim.name=muon"}};
  for (const auto& options : runs) {
    std::vector<std::string> more = {"--kills=5", "--stops=0"};
    for (const std::string& option : options) more.push_back("--option=" + option);
    const Result r = RunProgram(Soak(more));
    EXPECT_EQ(r.exit_code, 0) << r.out << r.err;
  }
}

}  // namespace
}  // namespace lockstep
