#include "optim/spike_guard.h"

#include <gmock/gmock-matchers.h>

#include <cmath>
#include <limits>

#include "core/error.h"
#include "optim/adamw.h"
#include "optim/clip.h"
#include "tests/optim/optim_test_util.h"

namespace lockstep::optim {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// Losses of 3 +- 0.1, norms of 1 +- 0.05.
void AddUsual(SpikeGuard& guard, int64_t steps) {
  for (int64_t i = 0; i < steps; ++i) {
    const double wave = std::sin(static_cast<double>(i));
    guard.Add(3 + 0.1 * wave, 1 + 0.05 * wave);
  }
}

TEST(SpikeGuard, KnowsTheRangeAfterHalfAWindow) {
  SpikeGuard guard(6);
  AddUsual(guard, 63);
  EXPECT_FALSE(guard.IsSpike(1e9));
  EXPECT_EQ(guard.NormLimit(), kInf);
  AddUsual(guard, 1);
  EXPECT_TRUE(guard.IsSpike(4));
  EXPECT_FALSE(guard.IsSpike(3.2));
  EXPECT_FALSE(guard.IsSpike(0.1)) << "a low loss is no spike";
  EXPECT_GT(guard.NormLimit(), 1.1f);
  EXPECT_LT(guard.NormLimit(), 1.6f);
}

TEST(SpikeGuard, IsNotMovedByOutliersButFollowsANewLevel) {
  SpikeGuard guard(6);
  AddUsual(guard, 128);
  const float limit = guard.NormLimit();
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(guard.IsSpike(9)) << i;
    guard.Add(9, 50);
  }
  EXPECT_LT(guard.NormLimit(), 2 * limit);
  int left_out = 20;
  for (; guard.IsSpike(9) && left_out < 1000; ++left_out) guard.Add(9, 50);
  EXPECT_GE(left_out, 60);
  EXPECT_LE(left_out, 66) << "half a window";
  EXPECT_EQ(guard.history().losses.size(), SpikeGuard::kWindow);
}

TEST(SpikeGuard, EqualValuesHaveAWidthOfOnePercent) {
  SpikeGuard guard(5);
  for (int i = 0; i < 64; ++i) guard.Add(2, 0);
  EXPECT_FALSE(guard.IsSpike(2.0999));
  EXPECT_TRUE(guard.IsSpike(2.1001));
  EXPECT_EQ(guard.NormLimit(), 0);
}

TEST(SpikeGuard, ValuesThatAreNotFiniteAreOthersBusiness) {
  SpikeGuard guard(6);
  AddUsual(guard, 100);
  const SpikeHistory before = guard.history();
  EXPECT_FALSE(guard.IsSpike(kInf));
  EXPECT_FALSE(guard.IsSpike(std::nan("")));
  guard.Add(std::nan(""), 1);
  guard.Add(3, kInf);
  EXPECT_EQ(guard.history(), before);
}

TEST(SpikeGuard, GoesOnFromItsHistory) {
  SpikeGuard whole(3), first(3);
  AddUsual(whole, 200);
  AddUsual(first, 90);
  SpikeGuard second(3, first.history());
  for (int64_t i = 90; i < 200; ++i) {
    const double wave = std::sin(static_cast<double>(i));
    second.Add(3 + 0.1 * wave, 1 + 0.05 * wave);
  }
  EXPECT_EQ(second.history(), whole.history());
  EXPECT_EQ(second.NormLimit(), whole.NormLimit());
  EXPECT_THROW(SpikeGuard(3, {.losses = {1}, .norms = {}}), ArgumentError);
  EXPECT_THROW(SpikeGuard(0), ArgumentError);
  EXPECT_THROW(SpikeGuard(kInf, {}), ArgumentError);
}

// A norm above the limit skips the update, and the loss scale takes no notice.
TEST(SpikeGuard, ItsLimitSkipsTheUpdate) {
  const auto p = MakeParameter("p", Tensor::Full({2}, 1, DType::kF32), true);
  AdamW adamw({p});
  StepState state(kCpu, 1);
  state.EnableLossScaling({.init = 1024, .growth_interval = 100});
  const auto step = [&](int64_t number, float limit) {
    const auto training = adamw.BeginStep(state, number, 0.1);
    p->leaf().SetGrad(Tensor::FromVector<float>({3 * 1024, 4 * 1024}, {2}));  // a norm of 5
    state.SetNormLimit(limit);
    ClipGradNorm(adamw.parameters(), 1.0, state);
    adamw.Step(state);
    adamw.ZeroGrad();
    return state.Read();
  };
  int64_t number = 0;
  for (const float limit : {4.9f, 0.0f, -1.0f}) {
    const StepValues v = step(number++, limit);
    EXPECT_EQ(v.found_inf, kSpike) << limit;
    EXPECT_EQ(v.grad_norm, 5);
    EXPECT_EQ(v.loss_scale.scale, 1024);
    EXPECT_EQ(v.loss_scale.skipped, 0);
    EXPECT_EQ(p->value().ToVector<float>(), std::vector<float>({1, 1})) << limit;
  }
  EXPECT_EQ(step(3, 5.0f).found_inf, 0);
  EXPECT_NE(p->value().ToVector<float>(), std::vector<float>({1, 1}));
  // The limit is of one step.
  const auto training = adamw.BeginStep(state, 4, 0.1);
  EXPECT_EQ(state.Read().norm_limit, kInf);
}

}  // namespace
}  // namespace lockstep::optim
