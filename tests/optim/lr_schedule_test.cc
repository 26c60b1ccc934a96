#include "optim/lr_schedule.h"

#include <cmath>
#include <limits>

#include "tests/optim/optim_test_util.h"

namespace lockstep::optim {
namespace {

LrScheduleOptions Options(LrDecay decay) {
  return {.decay = decay, .lr = 6e-4, .min_lr = 6e-5, .warmup = 5, .decay_steps = 20};
}

// What nanoGPT's get_lr and lr_at of tests/peers' PyTorch model give for these options.
TEST(LrScheduleTest, CosineIsNanoGpts) {
  const double want[] = {9.999999999999999e-05,
                         0.00019999999999999998,
                         0.0003,
                         0.00039999999999999996,
                         0.0004999999999999999,
                         0.0006,
                         0.0005940998521981274,
                         0.0005766572735635022,
                         0.0005484345884812357,
                         0.0005106652637168916,
                         0.0004649999999999999,
                         0.00041343458848123576,
                         0.0003582226850822664,
                         0.0003017773149177336,
                         0.0002465654115187642,
                         0.00019500000000000002,
                         0.00014933473628310834,
                         0.00011156541151876421,
                         8.334272643649774e-05,
                         6.590014780187247e-05,
                         6e-05,
                         6e-05,
                         6e-05};
  const LrSchedule schedule(Options(LrDecay::kCosine));
  for (int64_t step = 0; step < std::ssize(want); ++step) {
    EXPECT_NEAR(schedule(step), want[step], 1e-18) << "step " << step;
  }
  EXPECT_EQ(schedule(1'000'000'000), 6e-5);
}

TEST(LrScheduleTest, Linear) {
  const LrSchedule schedule(Options(LrDecay::kLinear));
  for (int64_t step = 0; step < 5; ++step) {
    EXPECT_DOUBLE_EQ(schedule(step), 1e-4 * static_cast<double>(step + 1));
  }
  EXPECT_EQ(schedule(5), 6e-4);
  EXPECT_DOUBLE_EQ(schedule(10), 6e-4 - 5.4e-4 / 3);
  EXPECT_DOUBLE_EQ(schedule(19), 6e-5 + 5.4e-4 / 15);
  EXPECT_EQ(schedule(20), 6e-5);
  EXPECT_EQ(schedule(21), 6e-5);
}

TEST(LrScheduleTest, Constant) {
  LrScheduleOptions o = Options(LrDecay::kConstant);
  o.decay_steps = 0;
  const LrSchedule schedule(o);
  EXPECT_DOUBLE_EQ(schedule(2), 3e-4);
  EXPECT_EQ(schedule(5), 6e-4);
  EXPECT_EQ(schedule(1'000'000), 6e-4);
}

TEST(LrScheduleTest, WsdIsStableAndThenDecays) {
  LrScheduleOptions o = Options(LrDecay::kWsd);
  o.decay_steps = 100;
  o.wsd_fraction = 0.2;
  const LrSchedule schedule(o);
  EXPECT_DOUBLE_EQ(schedule(4), 5e-4);
  for (int64_t step = 5; step <= 80; ++step) EXPECT_EQ(schedule(step), 6e-4) << "step " << step;
  EXPECT_DOUBLE_EQ(schedule(81), 6e-4 - 5.4e-4 / 20);
  EXPECT_DOUBLE_EQ(schedule(90), 3.3e-4);
  EXPECT_EQ(schedule(100), 6e-5);
  EXPECT_EQ(schedule(101), 6e-5);
}

TEST(LrScheduleTest, WsdBeginsToDecayWhereItIsTold) {
  LrScheduleOptions o = Options(LrDecay::kWsd);
  o.decay_steps = 97;
  o.decay_start = 57;
  const LrSchedule schedule(o);
  for (int64_t step = 5; step <= 57; ++step) EXPECT_EQ(schedule(step), 6e-4) << "step " << step;
  EXPECT_DOUBLE_EQ(schedule(58), 6e-4 - 5.4e-4 / 40);
  EXPECT_DOUBLE_EQ(schedule(77), 3.3e-4);
  EXPECT_EQ(schedule(97), 6e-5);
}

TEST(LrScheduleTest, WsdDecaysOverWhatTheWarmupLeaves) {
  LrScheduleOptions o = Options(LrDecay::kWsd);
  o.warmup = 10;
  o.wsd_fraction = 1;
  const LrSchedule schedule(o);
  EXPECT_EQ(schedule(10), 6e-4);
  EXPECT_DOUBLE_EQ(schedule(15), 3.3e-4);
}

TEST(LrScheduleTest, WarmupBeyondTheDecayEndsAtTheMinimum) {
  LrScheduleOptions o = Options(LrDecay::kCosine);
  o.warmup = 100;
  const LrSchedule schedule(o);
  EXPECT_DOUBLE_EQ(schedule(99), 6e-4 * 100 / 101);
  EXPECT_EQ(schedule(101), 6e-5);
}

TEST(LrScheduleTest, NeverLeavesItsBounds) {
  for (const LrDecay decay :
       {LrDecay::kConstant, LrDecay::kCosine, LrDecay::kLinear, LrDecay::kWsd}) {
    const LrSchedule schedule(Options(decay));
    double previous = 0;
    for (int64_t step = 0; step < 40; ++step) {
      const double lr = schedule(step);
      EXPECT_LE(lr, 6e-4);
      EXPECT_GE(lr, step < 5 ? previous : 6e-5) << Name(decay) << " at step " << step;
      if (step > 5) {
        EXPECT_LE(lr, previous) << Name(decay) << " at step " << step;
      }
      previous = lr;
    }
  }
}

TEST(LrScheduleTest, Names) {
  for (const LrDecay decay :
       {LrDecay::kConstant, LrDecay::kCosine, LrDecay::kLinear, LrDecay::kWsd}) {
    EXPECT_EQ(ParseLrDecay(Name(decay)), decay);
  }
  ExpectError<ArgumentError>([] { ParseLrDecay("cosin"); },
                             "unknown learning rate schedule 'cosin': use constant, cosine");
}

TEST(LrScheduleTest, Errors) {
  const auto expect = [](auto change, const std::string& message) {
    LrScheduleOptions o = Options(LrDecay::kWsd);
    change(o);
    ExpectError<ArgumentError>([&] { LrSchedule schedule(o); }, message);
  };
  expect([](auto& o) { o.lr = -1; }, "lr must be finite and above 0, got -1");
  expect([](auto& o) { o.lr = 0; }, "got 0: it is the peak, such as in LrSchedule({.lr = 1e-3");
  expect([](auto& o) { o.lr = std::nan(""); }, "lr must be finite");
  expect([](auto& o) { o.lr = std::numeric_limits<double>::infinity(); }, "lr must be finite");
  expect([](auto& o) { o.min_lr = 1; }, "min_lr must be in [0, lr = 0.0006], got 1");
  expect([](auto& o) { o.min_lr = std::nan(""); }, "min_lr must be in");
  expect([](auto& o) { o.warmup = -1; }, "warmup must be at least 0 steps, got -1");
  expect([](auto& o) { o.decay_steps = 0; }, "wsd needs decay_steps of at least 1, got 0");
  expect([](auto& o) { o.decay_start = -1; }, "decay_start must be at least 0 steps, got -1");
  expect([](auto& o) { o.wsd_fraction = 0; }, "wsd_fraction must be in (0, 1], got 0");
  expect([](auto& o) { o.wsd_fraction = 1.5; }, "wsd_fraction must be in (0, 1], got 1.5");
}

}  // namespace
}  // namespace lockstep::optim
