// Whatever plan train_gpt trains by in the library's order, only rounding differs.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/rank_runs.h"

namespace lockstep {
namespace {

class FastPlans : public RankRuns {
 protected:
  // Losses and norms of 20 steps.
  std::vector<std::pair<double, double>> Steps(int ranks, const std::string& out, Arguments more) {
    for (const char* same : {"--train.steps=20", "--train.global_batch_size=16",
                             "--train.eval_every=0", "--model.n_embd=32", "--model.vocab_size=128"})
      more.push_back(same);
    Run(ranks, out, more);
    std::vector<std::pair<double, double>> steps;
    for (const auto& line : Metrics(out)) {
      if (line.contains("grad_norm")) steps.emplace_back(line["loss"], line["grad_norm"]);
    }
    EXPECT_EQ(steps.size(), 20u) << out;
    return steps;
  }

  // By such a plan against one process; `model`: options of both.
  void ExpectClose(const Arguments& model, const std::vector<std::pair<int, Arguments>>& plans) {
    const auto alone = Steps(1, "alone", model);
    for (const auto& [ranks, plan] : plans) {
      Arguments options = plan;
      options.insert(options.end(), model.begin(), model.end());
      const std::string name = testing::PrintToString(plan);
      const auto steps = Steps(ranks, StrCat("plan", ++runs_), options);
      ASSERT_EQ(steps.size(), alone.size()) << name;
      for (size_t i = 0; i < steps.size(); ++i) {
        EXPECT_NEAR(steps[i].first, alone[i].first, 1e-5) << name << ", step " << i + 1;
        EXPECT_NEAR(steps[i].second, alone[i].second, 1e-5 * alone[i].second) << name;
      }
    }
  }

 private:
  int runs_ = 0;
};

const std::string kTp = "--parallel.tp=2", kCp = "--parallel.cp=2", kPp = "--parallel.pp=2",
                  kEp = "--parallel.ep=2", kShard = "--parallel.shard=full";

TEST_F(FastPlans, OfTiedWeights) {
  ExpectClose({}, {{4, {kCp}},
                   {4, {kCp, kPp}},
                   {4, {kCp, kShard}},
                   {4, {kTp, kShard}},
                   {4, {kTp, kPp}},
                   {4, {kTp, kCp}},
                   {8, {kTp, kCp}}});
}

TEST_F(FastPlans, OfAllModes) {
  ExpectClose({"--model.tie_embeddings=false"}, {{8, {kTp, kPp, kShard}},
                                                 {8, {kCp, kPp, kShard}},
                                                 {8, {kTp, kCp, kShard}},
                                                 {8, {kTp, kCp, kPp}}});
}

TEST_F(FastPlans, OfMixtures) {
  ExpectClose({"--model.n_expert=4"}, {{4, {kEp}},
                                       {4, {kEp, kPp}},
                                       {4, {kEp, kTp}},
                                       {4, {kEp, kShard}},
                                       {4, {kCp, kEp}},
                                       {4, {kCp, kTp}},
                                       {4, {kCp, kPp}},
                                       {4, {kTp, kPp}},
                                       {2, {kPp}}});
}

}  // namespace
}  // namespace lockstep
