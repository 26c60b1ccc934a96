// The plan of a run, and the memory that the allocator measures in train_gpt.
//
// A quarter of the table is run, which in CI the commit decides; all of it by
//   bazel test --test_env=LOCKSTEP_MEMORY_ROWS=all //tests/models/memory:memory_table_test
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "core/cuda/device.h"
#include "tests/gpu_test.h"
#include "tests/models/memory/memory_row.h"
#include "tests/sanitized.h"

namespace lockstep::models {
namespace {

using testing::HasSubstr;
using Row = MemoryRow;

const std::vector<Row> kRows = {
    {"gpt2", 1, false, kGpt2, {}},
    {"llama_tied_bf16", 1, false, kLlamaTied, {kBf16}},
    {"llama", 1, false, kLlama, {}},
    {"gpt2_untied_accumulated", 1, false, kGpt2Untied, {"--train.grad_accum=3"}},

    {"gpt2_fp16", 1, false, kGpt2, {kFp16, "--train.grad_accum=2"}},
    {"llama_pure_bf16",
     1,
     false,
     kLlama,
     {kBf16, "--optim.master_weights=false", "--optim.state_dtype=bf16",
      "--train.grad_dtype=bf16"}},
    {"gpt2_block", 1, false, kGpt2, {kBlock}},
    {"llama_mlp_bf16", 1, false, kLlama, {kBf16, "--train.recompute=mlp"}},

    {"gpt2_operations", 1, false, kGpt2, {"--train.recompute=gelu,layer_norm"}},
    {"gpt2_ordered_on_2", 2, false, kGpt2, {kOrdered, "--train.grad_accum=2"}},
    {"llama_optimizer_on_2_bf16", 2, false, kLlama, {kBf16, "--parallel.shard=optimizer"}},
    {"gpt2_gradients_on_4", 4, false, kGpt2, {"--parallel.shard=gradients", kOrdered}},

    {"gpt2_full_on_2", 2, false, kGpt2, {kFull, "--train.grad_accum=2"}},
    {"llama_full_on_4_block", 4, false, kLlama, {kFull, kBlock}},
    {"llama_tied_full_on_2_of_4_bf16",
     4,
     false,
     kLlamaTied,
     {kFull, kBf16, "--parallel.shard_ranks=2", kOrdered}},
    {"gpt2_full_kept_on_2",
     2,
     false,
     kGpt2Untied,
     {kFull, "--parallel.reshard_after_forward=false"}},

    // Little to compute between the sums of two units' gradients, which are added to what the
    // micro-batches before have left.
    {"gpt2_full_accumulated_on_2",
     2,
     false,
     {"--model.n_layer=4", "--model.n_head=4", "--model.n_embd=256",
      "--model.tie_embeddings=false"},
     {kFull, "--train.grad_accum=4", "--train.batch_size=1", "--optim.name=sgd"}},
    {"gpt2_gradients_accumulated_on_2",
     2,
     false,
     kGpt2Untied,
     {"--parallel.shard=gradients", "--train.grad_accum=4", "--train.batch_size=1"}},
    {"llama_muon", 1, false, kLlama, {"--optim.name=muon", "--train.batch_size=1"}},
    {"gpt2_muon_on_2_full", 2, false, kGpt2, {kFull, "--optim.name=muon", "--train.batch_size=1"}},

    {"gpu_gpt2", 1, true, kGpt2, {}},
    {"gpu_gpt2_offload", 1, true, kGpt2, {kOffload, "--train.grad_accum=2"}},
    {"gpu_llama_block_bf16", 1, true, kLlama, {kBf16, kBlock}},
    {"gpu_llama_offload_block_bf16", 1, true, kLlamaTied, {kBf16, kOffload, kBlock}},

    {"gpu_gpt2_on_2", 2, true, kGpt2, {}},
    {"gpu_llama_full_on_2_bf16", 2, true, kLlama, {kFull, kBf16}},
    {"gpu_gpt2_full_on_4_offload", 4, true, kGpt2, {kFull, kOffload}},
    {"gpu_llama_gradients_on_2_fp16",
     2,
     true,
     kLlamaTied,
     {"--parallel.shard=gradients", kFp16, "--train.recompute=mlp"}},
};

bool CannotRun(const Row& row) {
  return row.gpu && !(cuda::Simulated() && test::WhyProgramsHaveNoGpus(1).empty());
}

double SumOf(const Json& amounts) {
  double sum = 0;
  for (const auto& [owner, amount] : amounts.items()) sum += amount.get<double>();
  return sum;
}

// Each byte of the peak has an owner in the run's ledger, and each millisecond of its steps.
void ExpectAnOwnerForAll(const Row& row) {
  const Json ledger = LastStep(row)["ledger"];
  double peak = 0, ms = 0;
  const std::vector<Json> steps = Steps(row);
  for (const Json& step : steps) {
    peak = std::max(peak, step["memory_bytes"].get<double>());
    ms += step["ms"].get<double>() / static_cast<double>(steps.size());
  }
  EXPECT_NEAR(SumOf(ledger["bytes"]), peak, 1e-9 * peak) << ledger;
  EXPECT_LT(std::abs(ledger["bytes"].value("unexplained", 0.0)), 0.02 * peak) << ledger;
  // What the loop does between its steps is the ledger's alone.
  const double between = ledger["ms"].value("unexplained", 0.0);
  EXPECT_LE(SumOf(ledger["ms"]) - between, (1 + 1e-6) * ms) << ledger;
  EXPECT_GE(SumOf(ledger["ms"]), (1 - 1e-6) * ms) << ledger;
}

class MemoryTable : public testing::TestWithParam<Row> {};

TEST_P(MemoryTable, ThePlanIsWhatTheAllocatorMeasures) {
  const Row& row = GetParam();
  if (CannotRun(row)) GTEST_SKIP() << "for simulated GPUs, of which there are enough";
  const Result run = Train(row);
  ASSERT_EQ(run.exit_code, 0) << run;
  const double measured = LastStep(row)["memory_bytes"];
  const MemoryPlan plan = PlanOf(row);
  const auto planned = static_cast<double>(plan.peak.total());
  EXPECT_NEAR(planned, measured, 0.01 * measured) << Table(plan, kCpu);  // 3% are promised
  Tell(row, plan.peak.total(), measured);
  ExpectAnOwnerForAll(row);
}

INSTANTIATE_TEST_SUITE_P(Rows, MemoryTable, testing::ValuesIn(Drawn(kRows)),
                         [](const testing::TestParamInfo<Row>& info) { return info.param.name; });

// CUDA graphs keep segments of some MiB, which are live for the allocator.
class MemoryOfGraphs : public testing::TestWithParam<Row> {};

TEST_P(MemoryOfGraphs, IsWhatTheAllocatorReserves) {
  const Row& row = GetParam();
  if (CannotRun(row) || test::kSanitized) GTEST_SKIP() << "for simulated GPUs with a cache";
  const Result run = Train(row);
  ASSERT_EQ(run.exit_code, 0) << run;
  const double measured = LastStep(row)["memory_bytes"];
  const MemoryPlan plan = PlanOf(row);
  // The plan of graphs explains what they take beyond the peak of their tensors.
  const double beyond = measured - static_cast<double>(plan.peak.total());
  EXPECT_LT(std::abs(static_cast<double>(plan.reserved) - measured), 0.1 * beyond);
  EXPECT_NEAR(static_cast<double>(plan.reserved), measured, kPlanTolerance * measured);
  // Nor is it more while they are captured.
  for (const auto& step : Steps(row)) {
    EXPECT_LE(step["memory_bytes"], (1 + kPlanTolerance) * static_cast<double>(plan.reserved));
  }
  Tell(row, plan.reserved, measured);
}

constexpr const char* kGraphs = "--train.cuda_graphs=true";
const std::vector<Row> kGraphRows = {
    {"graphs_llama_block_bf16", 1, true, kLlama, {kGraphs, kBf16, kBlock}},
    {"graphs_gpt2", 1, true, kGpt2, {kGraphs, "--train.batch_size=12"}}};
INSTANTIATE_TEST_SUITE_P(Rows, MemoryOfGraphs, testing::ValuesIn(Drawn(kGraphRows)),
                         [](const testing::TestParamInfo<Row>& info) { return info.param.name; });

TEST(MemoryTableTest, HasTwentyEightDifferentRows) {
  EXPECT_EQ(kRows.size(), 28u);
  std::set<Arguments> different;
  for (const Row& row : kRows) {
    Arguments all = All(row);
    all.push_back(StrCat(row.ranks));
    different.insert(all);
  }
  EXPECT_EQ(different.size(), kRows.size());
}

// ---- A model that is too large for a GPU. ----

const Arguments kLarge = {"--model.n_layer=6", "--model.n_head=2", "--model.n_embd=128",
                          "--train.batch_size=8", "--train.steps=2"};

TEST(MemoryLimit, ShardingRecomputationAndOffloadTrainWhatDoesNotFit) {
  const Row alone{"limit_alone", 1, true, kLarge, {}};
  if (CannotRun(alone)) GTEST_SKIP() << "a simulated GPU's memory is as small as is asked for";
  const std::vector<Row> others = {{"limit_full_on_4", 4, true, kLarge, {kFull}},
                                   {"limit_block", 1, true, kLarge, {kBlock}},
                                   {"limit_offload", 1, true, kLarge, {kOffload}}};
  const int64_t needed = PlanOf(alone).peak.total();
  // Somewhat less than it needs; the others need far less, but for the blocks of some MiB that the
  // allocator takes.
  const int64_t limit = needed / 100 * 98;
  for (const Row& row : others) EXPECT_LT(PlanOf(row).peak.total(), needed / 100 * 85) << row.name;
  const std::string kib = StrCat(limit / 1024, "K");
  const Result refused = Train(alone, kib);
  EXPECT_EQ(refused.exit_code, 2) << refused;
  EXPECT_THAT(refused.err, HasSubstr("What would fit: "));
  for (const Row& row : others) {
    const Result run = Train(row, kib);
    ASSERT_EQ(run.exit_code, 0) << row.name << run;
    EXPECT_LE(int64_t{LastStep(row)["memory_bytes"]}, limit) << row.name;
  }
  // With enough memory. Offload lowers what the allocator measures by what the plan says.
  const Result run = Train(alone);
  ASSERT_EQ(run.exit_code, 0) << run;
  for (const Row& row : {others[1], others[2]}) {
    EXPECT_EQ(LastStep(row)["loss"], LastStep(alone)["loss"]) << row.name;
    const double planned = static_cast<double>(needed - PlanOf(row).peak.total());
    const double measured =
        double{LastStep(alone)["memory_bytes"]} - double{LastStep(row)["memory_bytes"]};
    EXPECT_NEAR(planned, measured, kPlanTolerance * measured) << row.name;
  }
}

// What is needed with CUDA graphs, the default, is what they reserve, and what an evaluation takes
// beside it.
TEST(MemoryLimit, GraphsNeedWhatTheyReserve) {
  const Row graphs{"limit_graphs", 1, true, kLarge, {kGraphs}};
  if (CannotRun(graphs) || test::kSanitized) GTEST_SKIP() << "for simulated GPUs with a cache";
  const MemoryPlan plan = PlanOf(graphs);
  ASSERT_GT(plan.reserved, plan.peak.total() / 100 * 103);
  ASSERT_GT(plan.evaluation, plan.reserved / 100);
  // The steps have room, the evaluation has not.
  const int64_t between = plan.reserved;
  const Result refused = Train(graphs, StrCat(between / 1024, "K"));
  EXPECT_EQ(refused.exit_code, 2) << refused;
  EXPECT_THAT(refused.err, HasSubstr("What would fit: --train.cuda_graphs=false ("));
  // With recomputation chosen by the plan, and with what the plan says.
  const Row automatic{"limit_graphs_auto", 1, true, kLarge, {kGraphs, "--train.recompute=auto"}};
  const auto needed = static_cast<double>(plan.needed({DeviceType::kCuda, 0}));
  const auto enough = static_cast<int64_t>((1 + kPlanTolerance) * needed);
  for (const auto& [row, limit] : {std::pair(automatic, between), {graphs, enough}}) {
    const Result run = Train(row, StrCat(limit / 1024, "K"));
    ASSERT_EQ(run.exit_code, 0) << row.name << run;
    EXPECT_THAT(run.out + run.err, testing::Not(HasSubstr("without CUDA graphs"))) << row.name;
  }
}

}  // namespace
}  // namespace lockstep::models
