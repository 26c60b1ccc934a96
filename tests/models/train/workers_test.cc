// The trainer on workers that make steps of their own (dist::DiLoCo), which are threads here.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>

#include "dist/data_parallel/diloco.h"
#include "models/train/step/trainer.h"
#include "optim/adamw.h"
#include "tests/dist/in_process.h"
#include "tests/models/training.h"

namespace lockstep::models {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kMicroBatches = 4;

struct BenchOptions {
  int64_t every = 3;
  DType dtype = DType::kF32;
  std::optional<LossScaleOptions> loss_scaling = {};
  int64_t max_skips = 0;
  double spike = 0;
};

struct Bench {
  Bench(dist::ProcessGroup* group, const BenchOptions& o) : model(SmallGpt(/*dropout=*/0.1)) {
    model.Materialize(kCpu, 4, o.dtype);
    for (const auto& p : model.Parameters()) p->leaf().SetDType(DType::kF32);
    workers = std::make_unique<dist::DiLoCo>(
        group, model, dist::DiLoCoOptions{.every = o.every, .micro_batches = kMicroBatches});
    ranks.emplace(*workers);
    optimizer = std::make_unique<optim::AdamW>(model.Parameters());
    loader =
        std::make_unique<data::Loader>(tokens, Shuffled(*tokens),
                                       data::BatchLayout{.batch_size = 2,
                                                         .micro_batches = kMicroBatches,
                                                         .micro_order = workers->micro_order()});
    trainer = std::make_unique<Trainer>(model, *optimizer, SmallSchedule(), *loader,
                                        TrainerOptions{.micro_batches = kMicroBatches,
                                                       .clip = 0.5,
                                                       .seed = 9,
                                                       .ranks = &*ranks,
                                                       .check_every = 2,
                                                       .max_skips = o.max_skips,
                                                       .loss_scaling = o.loss_scaling,
                                                       .spike = o.spike});
  }

  std::shared_ptr<const data::TokenSource> tokens = Tokens(400);
  Gpt model;
  std::unique_ptr<dist::DiLoCo> workers;
  std::optional<SampleRanks> ranks;
  std::unique_ptr<optim::AdamW> optimizer;
  std::unique_ptr<data::Loader> loader;
  std::unique_ptr<Trainer> trainer;
};

// Loss, norm and tokens are of the step's samples: the same as of one process where all that is
// different is who has them, in the first step. The loss at the end of a round is that of all.
TEST(Workers, LossesAreTheirOwnUntilTheEndOfTheRound) {
  std::vector<std::vector<double>> losses(2);
  dist::RunInProcess(2, [&](dist::ProcessGroup& group) {
    Bench bench(&group, {});
    for (int i = 0; i < 6; ++i) {
      const StepMetrics m = bench.trainer->Step();
      losses[group.rank()].push_back(m.loss);
      EXPECT_EQ(std::lround(m.tokens_per_second * m.ms / 1000), kMicroBatches * 2 * kWindow);
      EXPECT_DOUBLE_EQ(m.times.total(), m.ms);
      EXPECT_EQ(m.communication_ms > 0, m.step % 3 == 0);
      EXPECT_EQ(m.times.exposed_ms > 0, m.step % 3 == 0);
    }
  });
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(losses[0][i] == losses[1][i], (i + 1) % 3 == 0) << i;
  }
  Bench alone(nullptr, {.every = 1});
  const double loss = alone.trainer->Step().loss;
  EXPECT_NEAR((losses[0][0] + losses[1][0]) / 2, loss, 1e-6);
}

// Each makes as many steps with the data of two; it is much as if one had made them.
TEST(Workers, LearnAsOneProcessDoes) {
  const auto loss_after = [](dist::ProcessGroup* group) {
    Bench bench(group, {.every = 5});
    for (int i = 0; i < 40; ++i) bench.trainer->Step();
    return bench.trainer->Evaluate(data::EvalBatches(bench.tokens, kWindow, 3));
  };
  const double alone = loss_after(nullptr);
  std::vector<double> together(2);
  dist::RunInProcess(
      2, [&](dist::ProcessGroup& group) { together[group.rank()] = loss_after(&group); });
  EXPECT_EQ(together[0], together[1]);
  EXPECT_NEAR(together[0], alone, 0.25);
  EXPECT_LT(together[0], 0.7 * std::log(13.0)) << "of tokens without any pattern: log 13";
}

// Only the worker whose gradient it is skips, and its scale alone changes.
TEST(Workers, SkipsAndLossScalesAreTheirOwn) {
  std::vector<std::optional<LossScale>> scales(2);
  dist::RunInProcess(2, [&](dist::ProcessGroup& group) {
    Bench bench(&group, {.dtype = DType::kF16, .loss_scaling = LossScaleOptions{.init = 1024}});
    bool poisons = group.rank() == 1;
    const HookHandle hook = bench.model.Parameters()[2]->RegisterHook([&](const Tensor& grad) {
      return poisons ? Tensor::Full(grad.shape(), INFINITY, grad.dtype()) : grad;
    });
    EXPECT_EQ(bench.trainer->Step().skipped, group.rank() == 1);
    poisons = false;
    for (int i = 1; i < 6; ++i) EXPECT_FALSE(bench.trainer->Step().skipped);
    bench.workers->CheckWeights("after two rounds");
    scales[group.rank()] = bench.trainer->loss_scale();
  });
  EXPECT_EQ(scales[0]->scale, 1024);
  EXPECT_EQ(scales[1]->scale, 512);
  EXPECT_EQ(scales[1]->skipped, 1);
}

TEST(Workers, ANonFiniteGradientEndsItsWorkerAndNamesIt) {
  std::vector<std::string> errors(2);
  const auto train = [&](dist::ProcessGroup& group) {
    Bench bench(&group, {});
    bench.trainer->Step();
    group.Barrier()->Wait();  // or rank 0 may learn of the failure in its first step
    if (group.rank() == 1) bench.model.Parameters()[2]->value().Detach().Fill(INFINITY);
    try {
      for (int i = 0; i < 4; ++i) bench.trainer->Step();
    } catch (const Error& error) {
      errors[group.rank()] = error.what();
      throw;
    }
  };
  EXPECT_THROW(dist::RunInProcess(2, train), NonFiniteError);
  EXPECT_THAT(errors[1], AllOf(HasSubstr("step 2"), HasSubstr("first on rank 1"),
                               HasSubstr("the update was not made")));
  EXPECT_THAT(errors[0], HasSubstr("rank 1"));
}

TEST(Workers, SpikesAreTheirOwn) {
  dist::RunInProcess(2, [&](dist::ProcessGroup& group) {
    Bench bench(&group, {.spike = 0.01});
    int spikes = 0;
    for (int i = 0; i < 90; ++i) spikes += bench.trainer->Step().spike ? 1 : 0;
    EXPECT_GT(spikes, 0);
    bench.workers->CheckWeights("after thirty rounds");
  });
}

}  // namespace
}  // namespace lockstep::models
