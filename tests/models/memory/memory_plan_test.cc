#include "models/memory/memory_plan.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <map>

#include "core/allocator.h"
#include "core/meta_memory.h"
#include "models/train/step/trainer.h"
#include "tests/gpu_test.h"
#include "tests/models/memory/memory_case.h"
#include "tests/sanitized.h"

namespace lockstep::models {
namespace {

using Part = RecomputeChoice::Part;
using Case = MemoryCase;

// What the allocator measures for this case: model, optimizer and three steps.
int64_t MeasuredPeak(const Case& c, Device device = kCpu) {
  Allocator& allocator = GetAllocator(device);
  const int64_t before = allocator.stats().live_bytes;
  const auto tokens = MemoryTokens();
  const auto model = Make(c, device);
  const auto optimizer = MakeOptimizer(c, *model);
  data::Loader loader(tokens, data::Sampler(data::Order::kRandom, 3, tokens->size(), c.window),
                      {.batch_size = c.batch_size, .micro_batches = c.grad_accum});
  Trainer trainer(
      *model, *optimizer, optim::LrSchedule({.lr = 1e-3, .decay_steps = 20}), loader,
      {.micro_batches = c.grad_accum,
       .clip = c.clip,
       .loss_scaling = c.dtype == DType::kF16 ? std::optional(LossScaleOptions()) : std::nullopt});
  allocator.ResetPeak();
  for (int i = 0; i < 3; ++i) trainer.Step();
  return allocator.stats().peak_bytes - before;
}

class Memory : public testing::TestWithParam<Case> {};

TEST_P(Memory, ThePlanIsWhatTheAllocatorMeasures) {
  const MemoryPlan plan = Plan(GetParam());
  const auto measured = static_cast<double>(MeasuredPeak(GetParam()));
  EXPECT_NEAR(static_cast<double>(plan.peak.total()), measured, 0.03 * measured)
      << Summary(plan) << ", measured " << measured;
}

TEST_P(Memory, KindsHaveTheirSizes) {
  const MemoryPlan plan = Plan(GetParam());
  const Case& c = GetParam();
  int64_t f32 = 0, frozen = 0;  // of those that are trained, and of the others
  for (const auto& p : Gpt(c.model).Parameters()) {
    (p->trainable() ? f32 : frozen) += 4 * p->logical_shape().numel();
  }
  EXPECT_EQ(plan.peak.parameters, (f32 + frozen) * SizeOf(c.dtype) / 4);
  EXPECT_EQ(plan.largest.gradients, f32);
  // Two moments, and the master weights of 16-bit weights.
  const bool masters = c.dtype != DType::kF32 && c.adamw.master_weights;
  EXPECT_EQ(plan.peak.optimizer, 2 * f32 * SizeOf(c.adamw.state_dtype) / 4 + (masters ? f32 : 0));
  EXPECT_LE(plan.peak.gradients, f32);
  // At least the logits, if they are kept, and the input of every block.
  const int64_t tokens = c.batch_size * c.window;
  const int64_t kept = tokens <= c.model.loss_chunk ? c.model.vocab_size : 0;
  EXPECT_GT(plan.largest.activations,
            SizeOf(c.dtype) * tokens * (kept + c.model.n_layer * c.model.n_embd));
  EXPECT_LE(plan.peak.total(), plan.largest.total());
}

INSTANTIATE_TEST_SUITE_P(
    Cases, Memory,
    testing::Values(
        // shakespeare-char-cpu
        Case{"char", 12, 64, 1, 1, Shape(65, 64, 4, 4, 128, {.bias = false})},
        // Adapters: no gradients and no state of all else.
        Case{"adapters", 12, 64, 1, 1,
             Shape(65, 64, 4, 4, 128, {.bias = false, .lora = {.rank = 8}})},
        Case{"some_adapters_bf16", 6, 40, 3, 1,
             Shape(500, 64, 3, 4, 64,
                   {.bias = false,
                    .n_kv_head = 2,
                    .norm = NormKind::kRmsNorm,
                    .activation = nn::MlpActivation::kSwiGlu,
                    .position = Position::kRope,
                    .lora = {.rank = 4, .targets = "q_proj,v_proj"}}),
             DType::kBF16},
        // A large vocabulary, an untied head, biases, dropout, accumulation, no clipping.
        Case{"wide", 6, 40, 3, 0,
             Shape(5003, 48, 2, 4, 96, {.dropout = 0.1, .tie_embeddings = false})},
        // A Llama.
        Case{"llama", 4, 64, 1, 1,
             Shape(500, 64, 3, 4, 64,
                   {.bias = false,
                    .tie_embeddings = false,
                    .n_kv_head = 2,
                    .norm = NormKind::kRmsNorm,
                    .activation = nn::MlpActivation::kSwiGlu,
                    .position = Position::kRope})},
        // A Qwen3.
        Case{"qwen3", 4, 64, 2, 1,
             Shape(500, 64, 3, 4, 64,
                   {.bias = false,
                    .n_kv_head = 2,
                    .head_dim = 24,
                    .qk_norm = nn::QkNorm::kHead,
                    .norm = NormKind::kRmsNorm,
                    .activation = nn::MlpActivation::kSwiGlu,
                    .position = Position::kRope})},
        // The head in chunks, its gradient summed over them and over micro-steps.
        Case{"chunks", 6, 40, 2, 1, Shape(5003, 64, 2, 4, 32, {.loss_chunk = 50})},
        // More parameters than activations.
        Case{"few_tokens", 1, 16, 2, 1, Shape(211, 16, 3, 2, 160)},
        Case{"bf16", 4, 32, 2, 1, Shape(300, 32, 2, 2, 64), DType::kBF16},
        Case{"fp16", 4, 32, 2, 1, Shape(300, 32, 2, 2, 64), DType::kF16},
        Case{"pure_bf16",
             2,
             32,
             1,
             1,
             Shape(300, 32, 2, 2, 64),
             DType::kBF16,
             {.master_weights = false, .state_dtype = DType::kBF16}},
        // Recomputed: everything, some layers, parts, results of operations.
        Case{"block", 12, 64, 1, 1,
             Shape(65, 64, 4, 4, 128, {.bias = false, .recompute = ParseRecompute("block")})},
        Case{"some_blocks", 12, 64, 2, 1,
             Shape(65, 64, 4, 4, 128,
                   {.dropout = 0.1, .recompute = {.part = Part::kBlock, .layers = 2}})},
        Case{"attention", 12, 64, 1, 1,
             Shape(65, 64, 4, 4, 128, {.recompute = ParseRecompute("attention")})},
        Case{"mlp_bf16", 12, 64, 1, 1,
             Shape(65, 64, 4, 4, 128, {.recompute = ParseRecompute("mlp")}), DType::kBF16},
        Case{"ops", 12, 64, 1, 1,
             Shape(65, 64, 4, 4, 128, {.recompute = ParseRecompute("gelu,layer_norm")})},
        // Chunks of sequences, all on this rank.
        Case{"context",
             4,
             64,
             1,
             1,
             Shape(65, 64, 4, 4, 128, {.bias = false}),
             DType::kF32,
             {},
             std::make_shared<dist::ContextRanks>(nullptr, 2)},
        // Parts of layers within each, with two copies of the only key head.
        Case{"context_and_tensor",
             4,
             64,
             1,
             1,
             Shape(64, 64, 4, 4, 128, {.bias = false, .n_kv_head = 1}),
             DType::kF32,
             {},
             std::make_shared<dist::ContextRanks>(nullptr, 2, /*leaves_gradients_to_reducer=*/false,
                                                  std::make_shared<dist::TensorRanks>(nullptr, 2))},
        Case{"llama_block", 12, 64, 1, 1,
             Shape(65, 64, 4, 4, 128,
                   {.bias = false,
                    .tie_embeddings = false,
                    .n_kv_head = 2,
                    .norm = NormKind::kRmsNorm,
                    .activation = nn::MlpActivation::kSwiGlu,
                    .position = Position::kRope,
                    .recompute = ParseRecompute("block")})}),
    [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

// ---- On a GPU. ----

class GpuMemory : public test::GpuTest, public testing::WithParamInterface<Case> {};

TEST_P(GpuMemory, ThePlanIsWhatTheAllocatorMeasures) {
  const MemoryPlan plan = Plan(GetParam());
  const auto measured = static_cast<double>(MeasuredPeak(GetParam(), test::kGpu));
  EXPECT_NEAR(static_cast<double>(plan.peak.total()), measured, 0.03 * measured)
      << Summary(plan) << ", measured " << measured;
}

GptConfig OnGpu(const char* recompute, bool offload) {
  return Shape(
      65, 32, 4, 2, 64,
      {.bias = false, .recompute = ParseRecompute(recompute), .offload = {.activations = offload}});
}

INSTANTIATE_TEST_SUITE_P(
    Cases, GpuMemory,
    testing::Values(Case{"none", 8, 32, 1, 1, OnGpu("none", false)},
                    Case{"block", 8, 32, 1, 1, OnGpu("block", false)},
                    Case{"mlp", 8, 32, 1, 1, OnGpu("mlp", false), DType::kBF16},
                    Case{"muon", 1, 8, 1, 1, OnGpu("none", false), DType::kF32, {}, nullptr, true},
                    Case{"offload", 8, 32, 2, 1, OnGpu("none", true)},
                    Case{"block_offload", 8, 32, 1, 1, OnGpu("block", true)}),
    [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

// ---- What the process takes besides tensors. ----

TEST(MemoryPlanTest, WhatTheAllocatorRoundsIsPlanned) {
  const Case c{"", 12, 64, 1, 1, Shape(65, 64, 4, 4, 128)};
  Allocator& allocator = GetAllocator(kCpu);
  allocator.Trim();
  const int64_t before = allocator.stats().reserved_bytes;
  MeasuredPeak(c);
  const int64_t measured = allocator.stats().reserved_bytes - before;
  const MemoryPlan plan = Plan(c);
  EXPECT_GE(plan.reserved, plan.peak.total());
  if (test::kSanitized) GTEST_SKIP() << "sanitized allocators neither round sizes nor keep blocks";
  EXPECT_NEAR(static_cast<double>(plan.reserved), static_cast<double>(measured), 0.05 * measured);
}

// Of which the update of a matrix as large as the MLP's is the peak.
TEST(MemoryPlanTest, MuonsWorkspaceIsPlanned) {
  Case c{"", 1, 16, 1, 1, Shape(65, 16, 2, 4, 128)};
  c.muon = true;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    c.dtype = dtype;
    const MemoryPlan plan = Plan(c);
    EXPECT_GE(plan.peak.workspace, 4 * 2 * (128 * 512 + 128 * 128)) << Summary(plan);
    const auto measured = static_cast<double>(MeasuredPeak(c));
    EXPECT_NEAR(static_cast<double>(plan.peak.total()), measured, 0.01 * measured) << Summary(plan);
  }
}

TEST(MemoryPlanTest, AveragesArePlanned) {
  Case c{"", 2, 32, 1, 1, Shape(65, 32, 2, 2, 64)};
  const MemoryPlan without = Plan(c);
  c.adamw.ema = 0.9;
  const MemoryPlan plan = Plan(c);
  EXPECT_EQ(plan.peak.optimizer - without.peak.optimizer, 4 * plan.elements);
  const auto measured = static_cast<double>(MeasuredPeak(c));
  EXPECT_NEAR(static_cast<double>(plan.peak.total()), measured, 0.01 * measured) << Summary(plan);
}

// The purpose of train.loss_chunk.
TEST(MemoryPlanTest, LogitsAreOfAChunk) {
  Case c{"", 4, 32, 1, 1, Shape(5003, 32, 2, 2, 64)};
  const int64_t whole = Plan(c).peak.total(), row = 4 * c.model.vocab_size;
  c.model.loss_chunk = 16;  // of 128 tokens
  const int64_t chunked = Plan(c).peak.total();
  // The peak has the head's gradient [V, C] of the chunks instead of the logits [N, V].
  EXPECT_NEAR(static_cast<double>(whole - chunked),
              static_cast<double>((128 - c.model.n_embd) * row), 0.05 * 128 * row);
}

TEST(MemoryPlanTest, GrowsWithTheBatchOnlyInActivationsAndWorkspace) {
  Case c{"", 2, 32, 1, 1, Shape(65, 32, 2, 2, 64)};
  const MemoryPlan small = Plan(c);
  c.batch_size = 8;
  const MemoryPlan large = Plan(c);
  // Except for a few scalars.
  EXPECT_NEAR(static_cast<double>(large.largest.activations),
              4.0 * static_cast<double>(small.largest.activations), 64);
  EXPECT_EQ(large.peak.parameters, small.peak.parameters);
  EXPECT_EQ(large.largest.gradients, small.largest.gradients);
}

TEST(MemoryPlanTest, AnEvaluationTakesNeitherGradientsNorOptimizerState) {
  const Case c{"", 12, 64, 1, 1, Shape(65, 64, 4, 4, 128)};
  const MemoryPlan plan = PlanEvaluation(c);
  EXPECT_EQ(plan.largest.parameters, Plan(c).largest.parameters);
  EXPECT_EQ(plan.largest.gradients + plan.largest.optimizer + plan.largest.activations, 0);
  EXPECT_THAT(Summary(plan), testing::HasSubstr("at the peak of an evaluation: parameters "));
  Allocator& allocator = GetAllocator(kCpu);
  const int64_t before = allocator.stats().live_bytes;
  const auto tokens = MemoryTokens();
  const auto model = Make(c, kCpu);
  data::Loader loader(tokens, data::Sampler(data::Order::kRandom, 3, tokens->size(), c.window),
                      {.batch_size = c.batch_size});
  Trainer trainer(*model, nullptr, optim::LrSchedule({.lr = 1e-3, .decay_steps = 20}), loader, {});
  allocator.ResetPeak();
  trainer.Evaluate(data::EvalBatches(tokens, c.window, c.batch_size, /*max_batches=*/2));
  const auto measured = static_cast<double>(allocator.stats().peak_bytes - before);
  EXPECT_NEAR(static_cast<double>(plan.peak.total()), measured, kPlanTolerance * measured)
      << Summary(plan) << ", measured " << measured;
  EXPECT_THROW(trainer.Step(), ArgumentError);
}

// For a model that is too large for this machine.
TEST(MemoryPlanTest, TakesNoMemoryItself) {
  Allocator& allocator = GetAllocator(kCpu);
  const int64_t before = allocator.stats().live_bytes;
  allocator.ResetPeak();
  const MemoryPlan plan = Plan({"", 8, 1024, 4, 1, {.n_layer = 48, .n_head = 25, .n_embd = 1600}});
  EXPECT_LT(allocator.stats().peak_bytes - before, 1 << 20);
  EXPECT_GT(plan.peak.total(), int64_t{16} * 1557611200);
  EXPECT_THAT(Summary(plan), testing::HasSubstr("GiB at the peak of a step: parameters 5.80 GiB"));
  EXPECT_THAT(Table(plan, kCpu), testing::HasSubstr("total"));
}

// ---- core/meta_memory.h ----

class Counter : public MetaMemoryListener {
 public:
  void OnAllocate(const void* id, int64_t bytes) override { live[id] = bytes; }
  void OnFree(const void* id) override { live.erase(id); }
  std::map<const void*, int64_t> live;
};

TEST(MetaMemory, HearsOnlyOfStoragesOnTheMetaDevice) {
  const Tensor older = Tensor::Empty({4}, DType::kF32, kMeta);
  Tensor outlives;
  {
    Counter counter;
    Tensor a = Tensor::Empty({10}, DType::kF32, kMeta);
    const Tensor view = a.Slice(0, 2, 4);
    const Tensor host = Tensor::Empty({10}, DType::kF32);
    ASSERT_EQ(counter.live.size(), 1u);
    EXPECT_EQ(counter.live.begin()->second, 40);
    a = Tensor();
    EXPECT_EQ(counter.live.size(), 1u);  // the view holds it
    outlives = Tensor::Empty({3}, DType::kF64, kMeta);
    EXPECT_EQ(counter.live.size(), 2u);
    EXPECT_THROW(Counter(), ArgumentError);
    EXPECT_EQ(MetaMemoryListener::OfThisThread(), &counter);
  }
  EXPECT_EQ(MetaMemoryListener::OfThisThread(), nullptr);
}

}  // namespace
}  // namespace lockstep::models
