#include "models/report/run_health.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

namespace lockstep::models {
namespace {

using testing::HasSubstr;
using testing::StartsWith;
using LossAt = std::function<double(double share)>;

constexpr int64_t kSteps = 1000;

// A run whose curves are functions of the share of its steps, with noise on the training loss.
RunHistory Made(const LossAt& train, const LossAt& val,
                const std::function<void(StepMetrics&)>& change = {}) {
  RunHistory h(/*clip=*/1);
  for (int64_t s = 1; s <= kSteps; ++s) {
    const double share = static_cast<double>(s) / kSteps;
    StepMetrics m;
    m.step = s;
    m.loss = train(share) + 0.1 * std::sin(12.9898 * static_cast<double>(s));
    m.grad_norm = 0.5;
    m.lr = 1e-3;
    m.times = {.data_ms = 0.1, .forward_ms = 3, .backward_ms = 6, .update_ms = 0.9};
    m.ms = m.times.total();
    m.tokens_per_second = 1e5;
    m.memory_bytes = 1 << 20;
    if (val && s % 50 == 0) {
      m.val_loss = val(share);
      m.pauses.eval_ms = 20;
    }
    if (change) change(m);
    h.Add(m);
  }
  return h;
}

double Falling(double x) { return 1.5 + 2.7 * std::exp(-4 * x); }
double Flat(double x) { return 1.5 + 2.7 * std::exp(-40 * x); }

RunHealth JudgeRun(const RunHistory& h, bool finished = false) {
  return Judge(h, {.steps = 2 * kSteps, .tokens_per_step = 1000, .finished = finished});
}

const Finding& Of(const RunHealth& v, const std::string& label) {
  for (const Finding& f : v.findings) {
    if (f.label == label) return f;
  }
  throw std::runtime_error("no finding " + label);
}

TEST(RunHealth, AFallingLossIsHealthy) {
  const RunHealth v = JudgeRun(Made(Falling, [](double x) { return Falling(x) + 0.05; }));
  EXPECT_EQ(v.health, Health::kGood);
  EXPECT_EQ(v.headline, "Healthy: still learning");
  EXPECT_THAT(v.text, HasSubstr("over the last third"));
  for (const Finding& f : v.findings) EXPECT_EQ(f.health, Health::kGood) << f.label << f.text;
  EXPECT_EQ(v.findings.size(), 6u);
}

TEST(RunHealth, FlatIsGoodAtTheEndAndToBeWatchedBefore) {
  const RunHistory h = Made(Flat, Flat);
  EXPECT_EQ(JudgeRun(h, true).health, Health::kGood);
  EXPECT_THAT(JudgeRun(h, true).headline, HasSubstr("levelled off"));
  EXPECT_EQ(JudgeRun(h).health, Health::kWatch);
  EXPECT_THAT(JudgeRun(h).headline, StartsWith("Flat"));
}

TEST(RunHealth, WithoutValidationTheTrainingLossCounts) {
  const RunHealth v = JudgeRun(Made(Falling, {}));
  EXPECT_EQ(v.headline, "Healthy: still learning");
  EXPECT_THAT(v.text, StartsWith("Training loss"));
  EXPECT_EQ(Of(v, "Overfitting gap").health, Health::kUnknown);
}

TEST(RunHealth, OverfittingIsSeenAndItsBestStepNamed) {
  const auto val = [](double x) { return 1.8 + 3 * (x - 0.4) * (x - 0.4); };
  const RunHealth v = JudgeRun(Made(Falling, val));
  EXPECT_EQ(v.health, Health::kWatch);
  EXPECT_THAT(v.headline, StartsWith("Overfitting"));
  EXPECT_THAT(v.text, HasSubstr("best at step 400"));
  EXPECT_EQ(Of(v, "Overfitting gap").health, Health::kWatch);
  // It names no checkpoint that does not exist.
  EXPECT_THAT(v.text, HasSubstr("That checkpoint is not kept: checkpoint.keep_best"));
  const auto text = [&](int64_t kept) {
    return Judge(Made(Falling, val), {.steps = 2 * kSteps, .best_checkpoint = kept}).text;
  };
  EXPECT_THAT(text(400), HasSubstr("That checkpoint is kept as best"));
  EXPECT_THAT(text(350), HasSubstr("No checkpoint was saved then; best is that of step 350"));
}

// A validation loss that rises with the training loss is not overfitting.
TEST(RunHealth, DivergenceIsSeen) {
  const auto up = [](double x) { return x < 0.5 ? Falling(2 * x) : 1.55 + 3 * (x - 0.5); };
  const RunHealth v = JudgeRun(Made(up, up));
  EXPECT_EQ(v.health, Health::kBad);
  EXPECT_THAT(v.text, testing::AllOf(HasSubstr("It diverges"), HasSubstr("Lower optim.lr")));
  EXPECT_EQ(JudgeRun(Made(up, {})).health, Health::kBad);
}

TEST(RunHealth, NaNIsBadAnywhere) {
  const RunHistory h = Made(Falling, {}, [](StepMetrics& m) {
    if (m.step == 900) m.loss = NAN;
  });
  EXPECT_EQ(JudgeRun(h).health, Health::kBad);
  EXPECT_THAT(JudgeRun(h).headline, HasSubstr("no longer a number"));
  const RunHistory val = Made(Falling, [](double x) { return x > 0.9 ? INFINITY : Falling(x); });
  EXPECT_EQ(JudgeRun(val).health, Health::kBad);
}

TEST(RunHealth, SaysWhenItIsTooEarly) {
  EXPECT_EQ(Judge(RunHistory(), {}).headline, "Not started");
  RunHistory h;
  for (int64_t s = 1; s <= 5; ++s) {
    StepMetrics m;
    m.step = s;
    m.loss = static_cast<double>(s);
    h.Add(m);
  }
  const RunHealth v = Judge(h, {.steps = 100});
  EXPECT_EQ(v.health, Health::kUnknown);
  EXPECT_EQ(v.headline, "Just started");
}

TEST(RunHealth, GradientSpikesAndClipping) {
  const RunHealth spike = JudgeRun(Made(Falling, {}, [](StepMetrics& m) {
    if (m.step == 800) m.grad_norm = 50;
  }));
  EXPECT_EQ(Of(spike, "Gradient norm").health, Health::kWatch);
  EXPECT_THAT(Of(spike, "Gradient norm").text, HasSubstr("a spike of 50"));
  const RunHealth clipped = JudgeRun(Made(Falling, {}, [](StepMetrics& m) {
    if (m.step % 4 == 0) m.grad_norm = 1.5;
  }));
  EXPECT_EQ(Of(clipped, "Gradient norm").text, "no spikes; 25% of steps clipped at 1");
}

TEST(RunHealth, SkippedUpdates) {
  const auto every = [](int64_t period) {
    return JudgeRun(Made(Falling, {}, [period](StepMetrics& m) {
      m.loss_scale = 1024;
      m.skipped = m.step % period == 0;
      if (m.skipped) m.grad_norm = INFINITY;
    }));
  };
  EXPECT_EQ(Of(every(300), "Gradient norm").health, Health::kGood);
  EXPECT_THAT(Of(every(300), "Gradient norm").text,
              HasSubstr("3 updates skipped, loss scale 1024"));
  EXPECT_EQ(Of(every(10), "Gradient norm").health, Health::kWatch);
  const RunHealth spikes =
      JudgeRun(Made(Falling, {}, [](StepMetrics& m) { m.spike = m.step % 300 == 0; }));
  EXPECT_THAT(Of(spikes, "Gradient norm").text, HasSubstr("3 skipped by train.spike"));
  // Without a loss scale to blame.
  const RunHealth bad = JudgeRun(Made(Falling, {}, [](StepMetrics& m) {
    if (m.step == 500) m.grad_norm = INFINITY;
  }));
  EXPECT_EQ(Of(bad, "Gradient norm").health, Health::kBad);
}

TEST(RunHealth, ARankThatKeepsTheOthersWaiting) {
  // Late from step 300 on, in the line of each fiftieth step.
  const auto late_until = [](int64_t last) {
    return JudgeRun(Made(Falling, {}, [last](StepMetrics& m) {
      if (m.step % 50 != 0) return;
      m.late_rank = 3;
      m.late_ms = m.step < 300 || m.step > last ? 0.5 : 12.5;
      if (m.late_ms > 1) m.late = "rank 3 on node7 (data)";
    }));
  };
  EXPECT_THAT(Of(late_until(1000), "Throughput").text,
              HasSubstr("the other ranks wait 12.5 ms of each step for rank 3 on node7 (data)"));
  EXPECT_EQ(Of(late_until(1000), "Throughput").health, Health::kWatch);
  EXPECT_THAT(Of(late_until(500), "Throughput").text,
              HasSubstr("the other ranks waited 12.5 ms of each step for rank 3 on node7 (data) "
                        "until step 500"));
  EXPECT_EQ(Of(late_until(500), "Throughput").health, Health::kGood);
  EXPECT_THAT(Of(late_until(0), "Throughput").text, Not(HasSubstr("rank 3")));
}

TEST(RunHealth, SpeedTimeAndMemory) {
  const RunHealth slow = JudgeRun(Made(Falling, {}, [](StepMetrics& m) {
    if (m.step > 850) m.tokens_per_second = 5e4;
  }));
  EXPECT_THAT(Of(slow, "Throughput").text, StartsWith("slowing down: it was 100k"));
  const RunHealth unsteady = JudgeRun(Made(Falling, {}, [](StepMetrics& m) {
    if (m.step / 50 % 2 == 0) m.tokens_per_second = 5e4;
  }));
  EXPECT_THAT(Of(unsteady, "Throughput").text, StartsWith("unsteady: mostly 50.0k to 100k"));
  const RunHealth starved = JudgeRun(Made(Falling, {}, [](StepMetrics& m) {
    m.times.data_ms = 4;
    m.ms = m.times.total();
  }));
  EXPECT_EQ(Of(starved, "Time in steps").health, Health::kWatch);
  EXPECT_THAT(Of(starved, "Time in steps").text, StartsWith("waiting for data 29%"));
  const RunHealth leak =
      JudgeRun(Made(Falling, {}, [](StepMetrics& m) { m.memory_bytes = 1000000 + 1000 * m.step; }));
  EXPECT_THAT(Of(leak, "Memory").text, StartsWith("growing"));
}

}  // namespace
}  // namespace lockstep::models
