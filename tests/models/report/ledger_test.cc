// The ledger of a run: its lines add up, whatever was measured and planned.
#include "models/report/ledger.h"

#include <gtest/gtest.h>

#include "core/io/json.h"

namespace lockstep::models {
namespace {

// Three steps of 100 ms; the kernels are told with the last one.
RunHistory History(bool with_kernels) {
  RunHistory history;
  for (int64_t step = 1; step <= 3; ++step) {
    StepMetrics m{.step = step, .loss = 1};
    m.times = {.data_ms = 2, .forward_ms = 30, .backward_ms = 50, .exposed_ms = 8, .update_ms = 10};
    m.ms = m.times.total();
    m.memory_bytes = 1000 + step;
    if (step == 3 && with_kernels) {
      m.kernel_ms = {{"linear_forward", 60}, {"linear_backward", 90}, {"attention_forward", 15},
                     {"gelu_forward", 6},    {"adamw_update", 24},    {"grad_norm_finish", 3},
                     {"messages of tp", 27}, {"messages of dp", 15},  {kBetweenKernels, 30}};
    }
    history.Add(m);
  }
  return history;
}

double Sum(const std::vector<Ledger::Line>& lines) {
  double sum = 0;
  for (const Ledger::Line& line : lines) sum += line.measured;
  return sum;
}

double Of(const std::vector<Ledger::Line>& lines, const std::string& owner) {
  double all = 0;
  for (const Ledger::Line& line : lines) all += line.owner == owner ? line.measured : 0;
  return all;
}

TEST(Ledger, LinesAddUpToTheStep) {
  for (const bool with_kernels : {true, false}) {
    for (const bool on_device : {true, false}) {
      const Ledger ledger =
          MakeLedger(History(with_kernels), {.between_ms = 1.5, .on_device = on_device});
      EXPECT_NEAR(ledger.step_ms, 101.5, 1e-9);
      EXPECT_NEAR(Sum(ledger.ms), ledger.step_ms, 1e-9);
      EXPECT_FALSE(ledger.planned_ms);
      EXPECT_TRUE(ledger.bytes.empty());
    }
  }
}

TEST(Ledger, KernelsHaveOwners) {
  const Ledger ledger = MakeLedger(History(true), {.between_ms = 1.5});
  EXPECT_NEAR(Of(ledger.ms, kProducts), 50, 1e-9);
  EXPECT_NEAR(Of(ledger.ms, kAttention), 5, 1e-9);
  EXPECT_NEAR(Of(ledger.ms, kActivations), 2, 1e-9);
  EXPECT_NEAR(Of(ledger.ms, kUpdate), 9, 1e-9);
  EXPECT_NEAR(Of(ledger.ms, "messages of tp"), 9, 1e-9);
  // What is exposed after backward, and what is waited for within it.
  EXPECT_NEAR(Of(ledger.ms, kDataMessages), 8 + 5, 1e-9);
  EXPECT_NEAR(Of(ledger.ms, kHost), 10, 1e-9);
  EXPECT_NEAR(Of(ledger.ms, kData), 2, 1e-9);
  EXPECT_NEAR(Of(ledger.ms, kUnexplained), 1.5, 1e-9);
}

// A GPU computes on while its host waits for the gradients' sums.
TEST(Ledger, OfAGpuKernelsHaveTheWaitToo) {
  const Ledger ledger = MakeLedger(History(true), {.on_device = true});
  EXPECT_NEAR(Of(ledger.ms, kProducts), 50 * 98 / 90.0, 1e-9);
}

TEST(Ledger, WithoutKernelsTheirTimeIsUnexplained) {
  EXPECT_NEAR(Of(MakeLedger(History(false), {}).ms, kUnexplained), 90, 1e-9);
}

TEST(Ledger, EachLineStandsBesideThePlan) {
  const Ledger ledger = MakeLedger(
      History(true), {.planned_ms = {{kProducts, 45}, {kAttention, 6}, {kPipeline, 3}, {kHost, 0}},
                      .planned_bytes = {{"parameters", 600}, {"workspace", 410}}});
  EXPECT_EQ(ledger.planned_ms, 54);
  double planned = 0;
  for (const Ledger::Line& line : ledger.ms) planned += line.planned.value_or(1e9);
  EXPECT_EQ(planned, 54);
  EXPECT_EQ(Of(ledger.bytes, "parameters"), 600);
  EXPECT_EQ(ledger.peak_bytes, 1003);
  EXPECT_EQ(Of(ledger.bytes, kUnexplained), 1003 - 1010);
  EXPECT_EQ(Sum(ledger.bytes), 1003);
}

TEST(Ledger, IsEmptyBeforeTheFirstStep) {
  const Ledger ledger = MakeLedger(RunHistory(), {.planned_ms = {{kProducts, 45}}});
  EXPECT_TRUE(ledger.ms.empty());
  EXPECT_EQ(LedgerFigures(ledger), "");
}

TEST(Ledger, IsALine) {
  const Ledger ledger = MakeLedger(
      History(true), {.planned_ms = {{kProducts, 45}}, .planned_bytes = {{"parameters", 1000}}});
  const auto line = Json::parse(ToJson(ledger));
  EXPECT_NEAR(line["ms"]["products"], 50, 1e-9);
  EXPECT_EQ(line["planned_ms"]["products"], 45);
  EXPECT_EQ(line["bytes"]["unexplained"], 3);
  EXPECT_EQ(line["planned_bytes"]["parameters"], 1000);
}

}  // namespace
}  // namespace lockstep::models
