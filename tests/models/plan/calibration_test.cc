// Calibration: what is fitted to steps, the file of a cluster, and the plan of a run's ledger.
#include "models/plan/calibration.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "core/io/file.h"
#include "models/plan/block_time.h"
#include "models/plan/cluster_file.h"
#include "models/plan/planned_ledger.h"
#include "models/plan/search.h"
#include "tests/message_of.h"
#include "tests/models/parsed_run.h"

namespace lockstep::models {
namespace {

using testing::HasSubstr;

Cluster Cpu() {
  return {.device = "cpu",
          .devices = 2,
          .per_node = 2,
          .bytes = int64_t{8} << 30,
          .is_cpu = true,
          .peak = 1e11,
          .product_share = 0.9,
          .attention_share = 0.5,
          .attention_backward_share = 0.5,
          .units = 1,
          .memory_per_second = 5e9,
          .elementwise_per_second = 5e9,
          .launch_seconds = 1e-6,
          .host_seconds = 30e-6,
          .node = {100e-6, 1e9},
          .network = {100e-6, 1e9},
          .host = {1e-6, 1e10}};
}

RunSetup SetupOf(const std::vector<std::string>& arguments, const Cluster& cluster) {
  const ParsedRun run(arguments);
  return PrepareForSearch(run.options, run.config, cluster);
}

// A step as a cluster makes it, by kernels.
MeasuredPlan StepOn(const Cluster& cluster, const std::string& width, const std::string& batch) {
  const RunSetup setup =
      SetupOf({"--model.n_layer=4", "--model.n_head=4", "--model.n_embd=" + width,
               "--model.block_size=128", "--train.batch_size=" + batch},
              cluster);
  MeasuredPlan step{PlannedModel::Of(setup), LayoutOf(setup), {}};
  const BlockTime block = BlockTimeOf(step.model, step.layout, cluster);
  const BlockTime head = HeadTimeOf(step.model, step.layout, cluster);
  const StepTime time = TimeOf(step.model, step.layout, cluster);
  const double forward =
      step.layout.grad_accum * (4 * block.attention.forward + head.attention.forward);
  step.kernel_ms = {{"linear_forward", 1e3 * time.products},
                    {"attention_forward", 1e3 * forward},
                    {"attention_backward", 1e3 * (time.attention - forward)},
                    {"gelu_forward", 1e3 * time.other},
                    {"adamw_update", 1e3 * time.update},
                    {kBetweenKernels, 1e3 * time.host}};
  return step;
}

TEST(Fit, FindsTheConstantsOfTheMachineThatWasMeasured) {
  Cluster machine = Cpu();
  machine.product_share = 0.6;
  machine.attention_share = 0.1;
  machine.attention_backward_share = 0.2;
  machine.memory_per_second = 3e9;
  machine.elementwise_per_second = 1e9;
  machine.host_seconds = 80e-6;
  Cluster fitted = Cpu();
  Fit({StepOn(machine, "64", "16"), StepOn(machine, "256", "8")}, &fitted);
  EXPECT_NEAR(fitted.product_share, 0.6, 0.02);
  EXPECT_NEAR(fitted.attention_share, 0.1, 0.005);
  EXPECT_NEAR(fitted.attention_backward_share, 0.2, 0.01);
  EXPECT_NEAR(fitted.memory_per_second, 3e9, 1e8);
  EXPECT_NEAR(fitted.elementwise_per_second, 1e9, 5e7);
  EXPECT_NEAR(fitted.host_seconds, 80e-6, 1e-6);
  // And so the time of steps that were not measured.
  const MeasuredPlan other = StepOn(machine, "128", "4");
  EXPECT_NEAR(TimeOf(other.model, other.layout, fitted).total /
                  TimeOf(other.model, other.layout, machine).total,
              1, 0.03);
}

TEST(Fit, WhatWasNotMeasuredStays) {
  Cluster fitted = Cpu();
  MeasuredPlan step = StepOn(Cpu(), "64", "16");
  step.kernel_ms.clear();
  Fit({step}, &fitted);
  EXPECT_EQ(ToJson(fitted), ToJson(Cpu()));
}

class ClusterFile : public testing::Test {
 protected:
  const std::string path_ = JoinPath(testing::TempDir(), "machine.json");
};

TEST_F(ClusterFile, IsReadAsItWasWritten) {
  const Cluster gpu = ParseCluster("16xH100", "bf16");
  WriteFileAtomically(path_, ToJson(gpu));
  const Cluster read = ParseCluster("32x" + path_, "bf16");
  EXPECT_EQ(ToJson(read), ToJson(gpu));
  EXPECT_EQ(read.devices, 32);
  EXPECT_EQ(read.precision, "bf16");
  EXPECT_EQ(read.nodes(), 4);
}

// Twice as many ranks on a CPU have half of it each.
TEST_F(ClusterFile, RanksShareACpu) {
  Cluster cpu = Cpu();
  cpu.units = 4;
  std::string text = ToJson(cpu);
  const size_t at = text.find("\"processors\": ");
  text.replace(at, text.find(',', at) - at, "\"processors\": 8");
  WriteFileAtomically(path_, text);
  const Cluster two = ReadCluster(path_, 2), four = ReadCluster(path_, 4);
  EXPECT_EQ(two.peak, cpu.peak);
  EXPECT_EQ(two.units, 4);
  EXPECT_EQ(four.peak, cpu.peak / 2);
  EXPECT_EQ(four.units, 2);
  EXPECT_EQ(four.per_node, 4);
  EXPECT_EQ(four.bytes, cpu.bytes / 2);
  EXPECT_EQ(four.host_seconds, cpu.host_seconds);
}

TEST_F(ClusterFile, DamagedOnesAreRefused) {
  const std::string good = ToJson(Cpu());
  const auto error = [&](const std::string& text) {
    WriteFileAtomically(path_, text);
    return test::MessageOf<InputError>([&] { ReadCluster(path_, 2); });
  };
  EXPECT_EQ(error(good), "no error");
  EXPECT_THAT(error("{}"), HasSubstr("is it a file of plan --calibrate?"));
  EXPECT_THAT(error(good.substr(0, good.size() / 2)), HasSubstr(path_));
  std::string negative = good;
  negative.replace(negative.find("\"peak\": "), 8, "\"peak\": -");
  EXPECT_THAT(error(negative), HasSubstr("peak must not be negative"));
  EXPECT_THROW(ReadCluster(path_ + ".missing", 2), Error);
}

// ---- The plan of a run's ledger. ----

double Sum(const Amounts& amounts) {
  double sum = 0;
  for (const auto& [owner, amount] : amounts) sum += amount;
  return sum;
}

TEST(PlannedLedger, OwnersAddUpToTheStep) {
  const RunSetup setup = SetupOf({"--model.preset=llama-3-8b"}, ParseCluster("8xH100", "bf16"));
  const PlannedModel model = PlannedModel::Of(setup);
  for (const Layout& layout :
       {Layout{.mesh = {.dp = 8}, .shard = "full", .recompute = "block", .grad_accum = 4},
        Layout{.mesh = {.dp = 2, .tp = 2, .cp = 2}, .recompute = "attention"},
        Layout{.mesh = {.tp = 2, .pp = 4}, .schedule = "zbv", .grad_accum = 8}}) {
    const StepTime time = TimeOf(model, layout, ParseCluster("8xH100", "bf16"));
    EXPECT_NEAR(Sum(ByOwner(time)), 1e3 * time.total, 1e-6 * time.total) << Describe(layout);
    for (const auto& [owner, ms] : ByOwner(time)) EXPECT_GE(ms, 0) << owner;
    for (const double part : {time.norms, time.activations, time.loss}) EXPECT_GT(part, 0);
  }
}

TEST(PlannedLedger, LayoutsOfRunsAreThoseThatWereApplied) {
  RunSetup setup = SetupOf({"--model.preset=llama-3.2-1b", "--train.global_batch_size=64"},
                           ParseCluster("8xH100", "bf16"));
  for (const Layout& layout :
       {Layout{.mesh = {.dp = 8}, .shard = "full", .recompute = "mlp", .batch = 2, .grad_accum = 4},
        Layout{.mesh = {.dp = 2, .tp = 4}, .offload = "activations", .grad_accum = 32},
        Layout{.mesh = {.dp = 2, .pp = 4}, .schedule = "zbv", .grad_accum = 32}}) {
    Apply(layout, setup);
    EXPECT_EQ(LayoutOf(setup), layout) << Describe(LayoutOf(setup));
  }
}

}  // namespace
}  // namespace lockstep::models
