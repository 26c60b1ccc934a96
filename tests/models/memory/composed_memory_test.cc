// The plan of a run that divides stages, layers, sequences, weights and samples among ranks at
// once, and the memory that the allocator measures in train_gpt on the rank that takes most.
//
// A quarter of the table is run; all of it by
//   bazel test --test_env=LOCKSTEP_MEMORY_ROWS=all //tests/models/memory:composed_memory_test
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <set>

#include "core/cuda/device.h"
#include "tests/gpu_test.h"
#include "tests/models/memory/memory_row.h"

namespace lockstep::models {
namespace {

using Row = MemoryRow;

constexpr const char* kPp2 = "--parallel.pp=2";
constexpr const char* kPp4 = "--parallel.pp=4";
constexpr const char* kInterleaved = "--parallel.schedule=interleaved";
constexpr const char* kZbH1 = "--parallel.schedule=zb_h1";
constexpr const char* kZbv = "--parallel.schedule=zbv";
constexpr const char* kTp2 = "--parallel.tp=2";
constexpr const char* kCp2 = "--parallel.cp=2";
constexpr const char* kState = "--parallel.shard=optimizer";
constexpr const char* kGradients = "--parallel.shard=gradients";
constexpr const char* kAccum4 = "--train.grad_accum=4";
constexpr const char* kAccum8 = "--train.grad_accum=8";
constexpr const char* kEp2 = "--parallel.ep=2";
constexpr const char* kExperts = "--model.n_expert=4";
constexpr const char* kTwo = "--model.n_expert_used=2";
constexpr const char* kAll = "--model.n_expert_used=4";  // so that all ranks get as many rows
constexpr const char* kInner = "--model.n_expert_inner=64";
constexpr const char* kVocab = "--model.vocab_size=256";

// kGpt2 has tied weights, kLlama has not.
const std::vector<Row> kRows = {
    {"pp2_dp2", 4, false, kGpt2, {kPp2, kAccum4}},
    {"pp2_full2", 4, false, kLlama, {kPp2, kFull, kAccum4}},
    {"pp2_tp2", 4, false, kGpt2, {kPp2, kZbH1, kTp2, kVocab, kAccum4}},
    {"pp2_cp2", 4, false, kGpt2, {kPp2, kCp2, kAccum4}},

    {"pp2_dp2_interleaved_bf16", 4, false, kLlama, {kPp2, kInterleaved, kOrdered, kBf16, kAccum4}},
    {"pp2_gradients2_zbv", 4, false, kGpt2, {kPp2, kZbv, kGradients, kAccum4}},
    {"pp4_dp2_zb_h1", 8, false, kGpt2, {kPp4, kZbH1, kAccum8}},
    {"pp2_tp2_full2_zbv", 8, false, kLlama, {kPp2, kZbv, kTp2, kFull, kVocab, kAccum4}},

    {"pp2_cp2_full2", 8, false, kGpt2, {kPp2, kCp2, kFull, kAccum4}},
    {"pp2_tp2_dp2", 8, false, kGpt2, {kPp2, kTp2, kOrdered, kVocab, kAccum4}},
    {"pp2_dp2_block", 4, false, kLlama, {kPp2, kZbH1, kBlock, kAccum8}},
    {"pp2_optimizer2_interleaved",
     4,
     false,
     kGpt2,
     {kPp2, kInterleaved, kState, kOrdered, kAccum4}},

    {"pp2_tp2_zbv_bf16", 4, false, kLlama, {kPp2, kZbv, kTp2, kBf16, kVocab, kAccum4}},
    {"pp2_cp2_zbv", 4, false, kGpt2, {kPp2, kZbv, kCp2, kOrdered, kAccum4}},
    {"pp2_tp2_mlp",
     4,
     false,
     kGpt2,
     {kPp2, kInterleaved, kTp2, "--train.recompute=mlp", kVocab, kAccum4}},
    {"pp2_full2_of_4",
     8,
     false,
     kLlama,
     {kPp2, kFull, "--parallel.shard_ranks=2", kOrdered, kAccum4}},

    {"pp4_tp2", 8, false, kGpt2, {kPp4, kTp2, kVocab, kAccum8}},
    {"pp2_dp2_fp16", 4, false, kGpt2, {kPp2, kZbH1, kFp16, kAccum4}},
    {"pp2_gradients2_large_head", 4, false, kLlamaTied, {kPp2, kGradients, kAccum4}},
    {"pp2_dp2_experts", 4, false, kLlama, {kPp2, kExperts, kTwo, kInner, kAccum4}},

    {"tp2_cp2_experts", 4, false, kLlama, {kTp2, kCp2, kExperts, kTwo, kInner, kVocab, kAccum4}},
    {"cp2_ep4_experts",
     4,
     false,
     kLlama,
     {kCp2, "--parallel.ep=4", kExperts, kAll, kInner, kAccum4}},
    {"cp2_ep2_experts", 4, false, kLlama, {kCp2, kEp2, kExperts, kAll, kInner, kOrdered, kAccum4}},
    {"pp2_cp2_ep2_experts", 4, false, kGpt2, {kPp2, kCp2, kEp2, kExperts, kAll, kInner, kAccum4}},
};

// On simulated GPUs, which keep what passes between stages until the end of a step.
const std::vector<Row> kGpuRows = {
    {"gpu_pp2_dp2_block", 4, true, kGpt2, {kPp2, kBf16, kBlock, kAccum4}},
    {"gpu_pp2_gradients2_zbv_offload",
     4,
     true,
     kGpt2,
     {kPp2, kZbv, kGradients, "--train.offload=activations,optimizer,weights", kAccum4}},
    {"gpu_cp2_offload",
     2,
     true,
     kGpt2,
     {kCp2, kBf16, "--train.offload=activations,optimizer,weights", kAccum4}},
};

class ComposedMemory : public testing::TestWithParam<Row> {};

TEST_P(ComposedMemory, ThePlanIsWhatTheAllocatorMeasures) {
  const Row& row = GetParam();
  if (row.gpu && !cuda::Simulated()) GTEST_SKIP() << "for simulated GPUs, which are enough";
  if (row.gpu) SKIP_UNLESS_PROGRAMS_HAVE_GPUS(1);
  const Result run = Train(row);
  ASSERT_EQ(run.exit_code, 0) << run;
  const double measured = LastStep(row)["memory_bytes"];
  const MemoryPlan plan = PlanOf(row);
  EXPECT_NEAR(static_cast<double>(plan.peak.total()), measured, 0.01 * measured)  // 3% are promised
      << Table(plan, kCpu);
  Tell(row, plan.peak.total(), measured);
}

INSTANTIATE_TEST_SUITE_P(Rows, ComposedMemory, testing::ValuesIn(Drawn(kRows)),
                         [](const testing::TestParamInfo<Row>& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(GpuRows, ComposedMemory, testing::ValuesIn(Drawn(kGpuRows)),
                         [](const testing::TestParamInfo<Row>& info) { return info.param.name; });

// Ranks that compute a sequence together split a step, but each has all of an evaluation: of a
// narrow model it takes more, for logits mostly, and is planned too.
TEST(ComposedMemoryTest, EvaluationsOfWholeSequencesArePlanned) {
  const Row row = {
      "cp4_evaluates",
      4,
      false,
      {"--model.n_layer=1", "--model.n_head=4", "--model.n_embd=32", "--model.vocab_size=2048"},
      {"--parallel.cp=4"}};
  const Result run = Train(row);
  ASSERT_EQ(run.exit_code, 0) << run;
  double measured = 0;
  char unit[8] = "";
  const size_t at = run.out.find("peak memory ");
  ASSERT_NE(at, std::string::npos) << run.out;
  ASSERT_EQ(std::sscanf(run.out.c_str() + at, "peak memory %lf %7s", &measured, unit), 2);
  ASSERT_TRUE(std::string(unit) == "KiB" || std::string(unit) == "MiB") << run.out;
  measured *= std::string(unit) == "KiB" ? 1 << 10 : 1 << 20;
  const MemoryPlan plan = PlanOf(row);
  EXPECT_GT(plan.evaluating, plan.peak.total());
  EXPECT_NEAR(static_cast<double>(plan.evaluating), measured, kPlanTolerance * measured)
      << Table(plan, kCpu);
  EXPECT_THAT(Table(plan, kCpu), testing::HasSubstr("to evaluate"));
}

TEST(ComposedMemoryTest, HasDifferentRows) {
  std::set<Arguments> different;
  for (const Row& row : kRows) {
    Arguments all = All(row);
    all.push_back(StrCat(row.ranks));
    different.insert(all);
  }
  EXPECT_EQ(different.size(), 24u);
}

}  // namespace
}  // namespace lockstep::models
