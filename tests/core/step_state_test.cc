#include "core/step_state.h"

#include <gtest/gtest.h>

#include <cmath>
#include <thread>

namespace lockstep {
namespace {

TEST(StepStateTest, BeginWritesWhatKernelsRead) {
  StepState state(kCpu, 1337);
  EXPECT_EQ(state.device_values()->seed, 1337u);
  state.Begin(9, 3e-4, {{0.9, 0.95}, {0.8, 0.999}});
  const StepValues* v = state.device_values();
  EXPECT_EQ(v->step, 9);
  EXPECT_EQ(v->seed, 1337u);
  EXPECT_EQ(v->lr, 3e-4f);
  EXPECT_FLOAT_EQ(v->corrections[0].first, 1 - std::pow(0.9, 10));
  EXPECT_FLOAT_EQ(v->corrections[0].second, 1 - std::pow(0.95, 10));
  EXPECT_FLOAT_EQ(v->corrections[1].first, 1 - std::pow(0.8, 10));
  EXPECT_FLOAT_EQ(v->corrections[1].second, 1 - std::pow(0.999, 10));
  EXPECT_EQ(v->loss_scale, LossScale());
  EXPECT_EQ(v->clip_factor, 1);
  EXPECT_EQ(v->found_inf, 0);
  EXPECT_EQ(state.Read().step, 9);
}

TEST(StepStateTest, TheLossScaleLivesOnFromStepToStep) {
  StepState state(kCpu, 1);
  EXPECT_FALSE(state.loss_scaling());
  state.EnableLossScaling();
  state.Begin(0, 1);
  EXPECT_EQ(state.Read().loss_scale, (LossScale{.scale = 65536}));
  const LossScale later{.scale = 512, .good_steps = 7, .skipped = int64_t{1} << 40};
  state.device_values()->loss_scale = later;
  state.Begin(1, 1);
  state.SetFirstSample(3);
  EXPECT_EQ(state.Read().loss_scale, later);
  StepState resumed(kCpu, 1);
  resumed.EnableLossScaling({}, later);
  resumed.Begin(2, 1);
  EXPECT_EQ(resumed.Read().loss_scale, later);
}

TEST(StepStateTest, CorrectionsKeepTheirPrecisionNearOneAndAtZero) {
  StepState state(kCpu, 0);
  state.Begin(0, 1, {{0.0, 0.999999999}});
  EXPECT_EQ(state.Read().corrections[0].first, 1.0f);
  EXPECT_FLOAT_EQ(state.Read().corrections[0].second, 1e-9f);
  state.Begin(1000000, 1, {{0.9, 0.999}});
  EXPECT_EQ(state.Read().corrections[0].first, 1.0f);
}

TEST(StepStateTest, CorrectionsAreFoundByTheirBetas) {
  StepState state(kCpu, 0);
  state.Begin(4, 1, {{0.9, 0.95}, {0.9, 0.999}});
  EXPECT_EQ(state.CorrectionIndex({0.9, 0.95}), 0);
  EXPECT_EQ(state.CorrectionIndex({0.9, 0.999}), 1);
  EXPECT_THROW(state.CorrectionIndex({0.95, 0.9}), ArgumentError);
  state.Begin(5, 1);
  EXPECT_THROW(state.CorrectionIndex({0.9, 0.95}), ArgumentError) << "of the step before";
  EXPECT_THROW(state.Begin(6, 1, std::vector<Betas>(kMaxBetas + 1)), ArgumentError);
  EXPECT_EQ(state.Read().step, 5) << "nothing was begun";
}

TEST(StepStateTest, BeginResetsWhatTheStepBeforeLeft) {
  StepState state(kCpu, 5);
  state.Begin(0, 1);
  state.device_values()->found_inf = 1;
  state.device_values()->clip_factor = 0.5f;
  state.device_values()->grad_norm = 7;
  state.SetFirstSample(12);
  EXPECT_EQ(state.Read().first_sample, 12);
  EXPECT_EQ(state.Read().found_inf, 1) << "SetFirstSample leaves the rest alone";
  EXPECT_EQ(state.Read().clip_factor, 0.5f);
  state.Begin(1, 1);
  EXPECT_EQ(state.Read().found_inf, 0);
  EXPECT_EQ(state.Read().clip_factor, 1.0f);
  EXPECT_EQ(state.Read().grad_norm, 0.0f);
  EXPECT_EQ(state.Read().first_sample, 0);
  EXPECT_EQ(state.Read().seed, 5u);
}

TEST(StepStateTest, OnMetaThereAreNoValues) {
  StepState state(kMeta, 5);
  EXPECT_EQ(state.device_values(), nullptr);
  state.Begin(1, 1);
  state.SetFirstSample(3);
  EXPECT_EQ(state.seed(), 5u);
}

TEST(TrainingScopeTest, NestsAndBelongsToTheThread) {
  StepState a(kCpu, 1), b(kCpu, 2);
  EXPECT_EQ(CurrentStepState(), nullptr);
  {
    TrainingScope outer(a);
    EXPECT_EQ(CurrentStepState()->seed(), 1u);
    {
      TrainingScope inner(b);
      EXPECT_EQ(CurrentStepState()->seed(), 2u);
      std::thread([] { EXPECT_EQ(CurrentStepState(), nullptr); }).join();
    }
    EXPECT_EQ(CurrentStepState()->seed(), 1u);
  }
  EXPECT_EQ(CurrentStepState(), nullptr);
}

}  // namespace
}  // namespace lockstep
