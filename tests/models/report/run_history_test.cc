#include "models/report/run_history.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/io/file.h"

namespace lockstep::models {
namespace {

double Value(int64_t step) { return std::sin(static_cast<double>(step)) + 0.001 * step; }

// However long the run, there are few buckets, in order, without gaps, and they lose nothing.
TEST(Curve, KeepsSumsExtremesAndOrderAtAnyLength) {
  for (const int64_t steps : {1, 2, 599, 600, 601, 1201, 5000, 77777}) {
    Curve curve;
    double sum = 0, low = INFINITY, high = -INFINITY;
    for (int64_t s = 1; s <= steps; ++s) {
      curve.Add(s, Value(s));
      sum += Value(s);
      low = std::min(low, Value(s));
      high = std::max(high, Value(s));
    }
    ASSERT_LE(curve.buckets().size(), Curve::kMaxBuckets);
    EXPECT_GE(curve.buckets().size(), static_cast<size_t>(std::min<int64_t>(steps, 300)));
    int64_t next = 1;
    double bucket_sum = 0, bucket_low = INFINITY, bucket_high = -INFINITY;
    for (const Curve::Bucket& b : curve.buckets()) {
      EXPECT_EQ(b.first, next);
      EXPECT_EQ(b.count, b.last - b.first + 1);
      next = b.last + 1;
      bucket_sum += b.sum;
      bucket_low = std::min(bucket_low, b.min);
      bucket_high = std::max(bucket_high, b.max);
    }
    EXPECT_EQ(next, steps + 1);
    EXPECT_EQ(curve.count(), steps);
    EXPECT_NEAR(bucket_sum, sum, 1e-9 * std::abs(sum) + 1e-9);
    EXPECT_NEAR(curve.sum(), sum, 1e-9 * std::abs(sum) + 1e-9);
    EXPECT_EQ(bucket_low, low);
    EXPECT_EQ(bucket_high, high);
    EXPECT_NEAR(curve.Mean(1, steps), sum / static_cast<double>(steps), 1e-9);
  }
}

TEST(Curve, CountsNonFiniteValuesAndContinues) {
  Curve curve;
  for (int64_t s = 1; s <= 10; ++s) curve.Add(s, s % 3 == 0 ? NAN : 2.0);
  EXPECT_EQ(curve.non_finite(), 3);
  EXPECT_EQ(curve.count(), 7);
  EXPECT_EQ(curve.Mean(1, 10), 2.0);
}

TEST(Curve, QuantilesDoNotMindAnOutlier) {
  Curve curve;
  for (int64_t s = 1; s <= 101; ++s) curve.Add(s, s == 50 ? 1e9 : static_cast<double>(s));
  EXPECT_NEAR(curve.Median(1, 101), 51, 1);
  EXPECT_NEAR(curve.Quantile(0.25, 1, 101), 26, 1);
  EXPECT_NEAR(curve.Quantile(0.75, 1, 101), 77, 1);
  EXPECT_EQ(curve.Quantile(1, 60, 70), 70);
  EXPECT_EQ(curve.Median(200, 300), 0);
}

StepMetrics At(int64_t step) {
  StepMetrics m;
  m.step = step;
  m.loss = 3 - 0.01 * static_cast<double>(step);
  m.grad_norm = step % 4 == 0 ? 2.0 : 0.5;
  m.lr = 1e-3;
  m.times = {.data_ms = 1, .forward_ms = 3, .backward_ms = 5, .update_ms = 1};
  m.ms = m.times.total();
  m.tokens_per_second = 1000;
  m.memory_bytes = 4096;
  m.unix_time = 1e9 + static_cast<double>(step);
  if (step % 10 == 0) {
    m.val_loss = m.loss + 0.5;
    m.pauses.eval_ms = 7;
  }
  return m;
}

TEST(RunHistory, FileAndMemoryGiveTheSame) {
  const std::string path = testing::TempDir() + "/history.jsonl";
  RunHistory direct(/*clip=*/1);
  std::string lines = "{\"step\":0,\"val_loss\":4.5}\n";
  StepMetrics before;
  before.val_loss = 4.5;
  direct.Add(before);
  for (int64_t s = 1; s <= 40; ++s) {
    lines += ToJson(At(s)) + "\n";
    direct.Add(At(s));
  }
  // Foreign lines are skipped, and so is a line that a crash truncated.
  WriteFileAtomically(path, "\n[1]\n{\"step\":\"x\"}\n" + lines + "{\"step\": 41, \"lo");
  RunHistory read(/*clip=*/1);
  read.AddFile(path);
  EXPECT_EQ(read.last_step(), 40);
  EXPECT_EQ(read.first_step(), 1);
  EXPECT_EQ(read.clipped_steps(), 10);
  EXPECT_EQ(read.pauses.eval_ms, 28);
  ASSERT_EQ(read.val_loss.size(), 5u);
  EXPECT_EQ(read.val_loss[0].step, 0);
  EXPECT_EQ(read.val_loss[4].value, direct.val_loss[4].value);
  for (auto curve : {&RunHistory::loss, &RunHistory::grad_norm, &RunHistory::lr,
                     &RunHistory::step_ms, &RunHistory::memory, &RunHistory::backward_ms}) {
    EXPECT_EQ((read.*curve).count(), 40);
    EXPECT_EQ((read.*curve).sum(), (direct.*curve).sum());
  }
}

// A file from before there was a breakdown still has its curves.
TEST(RunHistory, ReadsLinesWithFewerFields) {
  const std::string path = testing::TempDir() + "/history_old.jsonl";
  WriteFileAtomically(path,
                      "{\"step\":1,\"loss\":2.5,\"grad_norm\":0.5,\"lr\":0.1,\"ms\":4,"
                      "\"tokens_per_second\":9}\n{\"step\":2,\"loss\":null}\n");
  RunHistory h;
  h.AddFile(path);
  EXPECT_EQ(h.loss.count(), 1);
  EXPECT_EQ(h.loss.non_finite(), 1);
  EXPECT_TRUE(h.data_ms.empty());
  EXPECT_TRUE(h.memory.empty());
}

// A long run that evaluates often has few points, but the first, the last and the best.
TEST(RunHistory, ThinsValidationLosses) {
  RunHistory history;
  for (int64_t s = 1; s <= 100'000; ++s) {
    StepMetrics m;
    m.step = s;
    m.val_loss = s == 77'777 ? 0.5 : 1.0 + 1.0 / static_cast<double>(s);
    history.Add(m);
    ASSERT_LE(history.val_loss.size(), RunHistory::kMaxValLosses);
  }
  const auto& points = history.val_loss;
  EXPECT_GE(points.size(), RunHistory::kMaxValLosses / 4);
  EXPECT_EQ(points.front().step, 1);
  EXPECT_EQ(points.back().step, 100'000);
  EXPECT_TRUE(std::any_of(points.begin(), points.end(),
                          [](const auto& p) { return p.step == 77'777 && p.value == 0.5; }));
  for (size_t i = 1; i < points.size(); ++i) EXPECT_LT(points[i - 1].step, points[i].step);
}

}  // namespace
}  // namespace lockstep::models
