#include "models/sweep/sweep.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "core/error.h"

namespace lockstep::models {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> Names(const Sweep& sweep) {
  std::vector<std::string> names;
  for (const SweepPoint& point : PointsOf(sweep)) names.push_back(point.name);
  return names;
}

std::string ErrorOf(const Sweep& sweep) {
  try {
    PointsOf(sweep);
  } catch (const InputError& e) {
    return e.what();
  }
  return "";
}

TEST(SweepTest, IsTakenOutOfTheArguments) {
  std::vector<std::string> arguments = {
      "run.toml",       "--sweep", "optim.lr=1e-3,2e-3", "--seed=3", "--sweep=train.steps=5,6",
      "--sweep_draws=7"};
  const Sweep sweep = TakeSweep(&arguments);
  EXPECT_THAT(arguments, ElementsAre("run.toml", "--seed=3"));
  EXPECT_THAT(sweep.axes, ElementsAre("optim.lr=1e-3,2e-3", "train.steps=5,6"));
  EXPECT_EQ(sweep.draws, 7);
  EXPECT_TRUE(TakeSweep(&arguments).empty());
  for (const char* wrong : {"0", "-1", "1.5", "many", "1e9", ""}) {
    std::vector<std::string> few = {"--sweep_draws", wrong};
    EXPECT_THROW(TakeSweep(&few), InputError) << wrong;
  }
  std::vector<std::string> none = {"--sweep"};
  EXPECT_THROW(TakeSweep(&none), InputError);
}

TEST(SweepTest, AGridHasEachCombinationAndTheLastAxisVariesFastest) {
  const Sweep sweep = {{"optim.lr=1e-3,2e-3", "seed=1,2,3"}};
  EXPECT_THAT(Names(sweep), ElementsAre("lr=1e-3,seed=1", "lr=1e-3,seed=2", "lr=1e-3,seed=3",
                                        "lr=2e-3,seed=1", "lr=2e-3,seed=2", "lr=2e-3,seed=3"));
  EXPECT_THAT(ArgumentsOf(PointsOf(sweep)[4]), ElementsAre("--optim.lr=2e-3", "--seed=2"));
}

TEST(SweepTest, FoldersAreDistinctAndPlain) {
  EXPECT_THAT(Names({{"train.every=1", "eval.every=2"}}),
              ElementsAre("train.every=1,eval.every=2"));
  EXPECT_THAT(Names({{"data.path=a/b.txt,../c.txt"}}),
              ElementsAre("path=a_b.txt", "path=.._c.txt"));
}

TEST(SweepTest, DrawsAreTheSameEachTimeAndMoreKeepTheFirst) {
  const Sweep few = {{"optim.lr=1e-4..1e-2", "model.n_layer=2..4", "optim.beta2=0.9,0.99"}, 20};
  Sweep many = few;
  many.draws = 400;
  const std::vector<std::string> first = Names(few), all = Names(many);
  EXPECT_EQ(first, Names(few));
  EXPECT_TRUE(std::equal(first.begin(), first.end(), all.begin()));
  std::set<std::string> layers, betas;
  int64_t below = 0;
  for (const SweepPoint& point : PointsOf(many)) {
    const double lr = std::stod(point.settings[0].second);
    EXPECT_GE(lr, 1e-4);
    EXPECT_LE(lr, 1e-2);
    below += lr < 1e-3 ? 1 : 0;  // half of them, by the logarithm
    layers.insert(point.settings[1].second);
    betas.insert(point.settings[2].second);
  }
  EXPECT_NEAR(static_cast<double>(below) / static_cast<double>(all.size()), 0.5, 0.1);
  EXPECT_THAT(layers, ElementsAre("2", "3", "4"));
  EXPECT_THAT(betas, ElementsAre("0.9", "0.99"));
}

TEST(SweepTest, ADrawThatIsThereAlreadyIsNoRun) {
  EXPECT_EQ(Names({{"seed=1,2,3"}, 100}).size(), 3);
}

TEST(SweepTest, SaysWhatIsWrong) {
  EXPECT_THAT(ErrorOf({{"optim.lr"}}), HasSubstr("optim.lr"));
  EXPECT_THAT(ErrorOf({{"=3"}}), HasSubstr("=3"));
  EXPECT_THAT(ErrorOf({{"seed=1,,2"}}), HasSubstr("empty"));
  EXPECT_THAT(ErrorOf({{"seed=1,2,1"}}), HasSubstr("twice"));
  EXPECT_THAT(ErrorOf({{"seed=1", "seed=2"}}), AllOf(HasSubstr("seed"), HasSubstr("twice")));
  EXPECT_THAT(ErrorOf({{"optim.lr=1e-4..1e-2"}}), HasSubstr("--sweep_draws"));
  EXPECT_THAT(ErrorOf({{"optim.lr=1e-2..1e-4"}, 3}), HasSubstr("ascend"));
  EXPECT_THAT(ErrorOf({{"out_dir=a,b"}}), HasSubstr("out_dir"));
  EXPECT_THAT(ErrorOf({{}, 3}), HasSubstr("--sweep KEY"));
  const std::string hundred = "=1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22";
  EXPECT_THAT(ErrorOf({{"a" + hundred, "b" + hundred, "c" + hundred}}), HasSubstr("--sweep_draws"));
}

}  // namespace
}  // namespace lockstep::models
