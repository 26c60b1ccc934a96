#include "models/train/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>

#include "core/allocator.h"
#include "core/autograd/engine.h"
#include "core/meta_memory.h"
#include "dist/context/parallelize_context.h"
#include "dist/data_parallel/data_parallel.h"
#include "dist/data_parallel/reducer_memory.h"
#include "dist/groups/in_process_group.h"
#include "dist/groups/planned_group.h"
#include "models/gpt/gpt.h"
#include "models/train/parallelize.h"
#include "optim/adamw.h"
#include "tests/gpu_test.h"
#include "tests/sanitized.h"

namespace lockstep::models {
namespace {

using Part = RecomputeChoice::Part;

struct Case {
  const char* name;
  int64_t batch_size, window, grad_accum;
  double clip;
  GptConfig model;
  DType dtype = DType::kF32;
  optim::AdamWOptions adamw = {};
  dist::ContextRanksPtr context = nullptr;
};

// `rest` with these sizes.
GptConfig Shape(int64_t vocab_size, int64_t block_size, int64_t n_layer, int64_t n_head,
                int64_t n_embd, GptConfig rest = {}) {
  rest.vocab_size = vocab_size;
  rest.block_size = block_size;
  rest.n_layer = n_layer;
  rest.n_head = n_head;
  rest.n_embd = n_embd;
  return rest;
}

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

std::shared_ptr<Gpt> Make(const Case& c, Device device) {
  auto model = std::make_shared<Gpt>(c.model);
  if (c.context && c.context->within()) Parallelize(*model, c.context->within());
  if (c.context) dist::ParallelizeContext(*model, c.context);
  model->Materialize(device, 4, c.dtype);
  for (const auto& p : model->Parameters()) p->leaf().SetDType(DType::kF32);
  return model;
}

// What the allocator measures for this case: model, optimizer and three steps.
int64_t MeasuredPeak(const Case& c, Device device = kCpu) {
  Allocator& allocator = GetAllocator(device);
  const int64_t before = allocator.stats().live_bytes;
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < 4096; ++i) ids.push_back(static_cast<int32_t>(i * i % 13));
  const auto tokens = std::make_shared<data::MemoryTokens>(ids);
  const auto model = Make(c, device);
  optim::AdamW adamw(model->Parameters(), c.adamw);
  data::Loader loader(tokens, data::Sampler(data::Order::kRandom, 3, tokens->size(), c.window),
                      {.batch_size = c.batch_size, .micro_batches = c.grad_accum});
  Trainer trainer(
      *model, adamw, optim::LrSchedule({.lr = 1e-3, .decay_steps = 20}), loader,
      {.micro_batches = c.grad_accum,
       .clip = c.clip,
       .loss_scaling = c.dtype == DType::kF16 ? std::optional(LossScaleOptions()) : std::nullopt});
  allocator.ResetPeak();
  for (int i = 0; i < 3; ++i) trainer.Step();
  return allocator.stats().peak_bytes - before;
}

MemoryPlan Plan(const Case& c) {
  return PlanMemory({.model = [&] { return Make(c, kMeta); },
                     .optimizer =
                         [&](LanguageModel& model) {
                           return std::make_unique<optim::AdamW>(model.Parameters(), c.adamw);
                         },
                     .batch_size = c.batch_size,
                     .window = c.window,
                     .grad_accum = c.grad_accum,
                     .clip = c.clip});
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
  const int64_t f32 = 4 * Gpt(c.model).NumParameters();
  EXPECT_EQ(plan.peak.parameters, f32 * SizeOf(c.dtype) / 4);
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
             std::make_shared<dist::ContextRanks>(nullptr, 2, /*apart=*/false,
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
      {.bias = false, .recompute = ParseRecompute(recompute), .offload_activations = offload});
}

INSTANTIATE_TEST_SUITE_P(Cases, GpuMemory,
                         testing::Values(Case{"none", 8, 32, 1, 1, OnGpu("none", false)},
                                         Case{"block", 8, 32, 1, 1, OnGpu("block", false)},
                                         Case{"mlp", 8, 32, 1, 1, OnGpu("mlp", false),
                                              DType::kBF16},
                                         Case{"offload", 8, 32, 2, 1, OnGpu("none", true)},
                                         Case{"block_offload", 8, 32, 1, 1, OnGpu("block", true)}),
                         [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

// ---- With other ranks. ----

dist::ReducerOptions Summing(dist::GradientSum sum, int64_t micro_batches) {
  return {.first_bucket_bytes = 20000,
          .bucket_bytes = 100000,
          .sum = sum,
          .micro_batches = micro_batches};
}

// One rank of a step. The allocator has the live bytes of all ranks between steps, and their peak.
template <class Ranks, class Options>
void TrainRank(dist::ProcessGroup* group, const Case& c, const Options& options,
               const std::function<void()>& at_rest) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < 4096; ++i) ids.push_back(static_cast<int32_t>(i * i % 13));
  const auto tokens = std::make_shared<data::MemoryTokens>(ids);
  const auto model = Make(c, kCpu);
  Ranks parallel(group, *model, options);
  optim::AdamW adamw(model->Parameters(), c.adamw);
  data::Loader loader(tokens, data::Sampler(data::Order::kRandom, 3, tokens->size(), c.window),
                      {.batch_size = c.batch_size,
                       .micro_batches = parallel.micro_batches(),
                       .micro_order = parallel.micro_order()});
  Trainer trainer(
      *model, adamw, optim::LrSchedule({.lr = 1e-3, .decay_steps = 20}), loader,
      {.micro_batches = parallel.micro_batches(), .clip = c.clip, .parallel = &parallel});
  for (int i = 0; i < 3; ++i) trainer.Step();
  at_rest();
}

MemoryPlan PlanOfRanks(const Case& c, const dist::ReducerOptions& reducer, int64_t ranks) {
  return PlanMemory(
      {.model = [&] { return Make(c, kMeta); },
       .optimizer =
           [](LanguageModel& model) { return std::make_unique<optim::AdamW>(model.Parameters()); },
       .batch_size = c.batch_size,
       .window = c.window,
       .grad_accum = c.grad_accum,
       .clip = c.clip,
       .reducer = reducer,
       .ranks = ranks});
}

// Buckets are also alive in forward, and the ordered sum of 8 micro-steps has 4 of each, also of
// the head's use of the tied embedding.
TEST(MemoryPlanTest, BucketsOfTheOrderedSumAreWhatTheAllocatorMeasures) {
  const Case c{"", 2, 32, 8, 1, Shape(211, 32, 3, 4, 96)};
  const auto reducer = Summing(dist::GradientSum::kOrdered, c.grad_accum);
  const MemoryPlan plan = PlanOfRanks(c, reducer, 1);
  const int64_t f32 = 4 * (Gpt(c.model).NumParameters() + 211 * 96);
  EXPECT_EQ(plan.peak.parameters, f32 - 4 * 211 * 96);
  EXPECT_NEAR(static_cast<double>(plan.peak.buckets), 3.0 * f32, 0.02 * f32);
  EXPECT_EQ(plan.largest.gathers, 0);
  Allocator& allocator = GetAllocator(kCpu);
  const int64_t before = allocator.stats().live_bytes;
  allocator.ResetPeak();
  TrainRank<dist::DataParallel>(nullptr, c, reducer, [] {});
  const auto measured = static_cast<double>(allocator.stats().peak_bytes - before);
  EXPECT_NEAR(static_cast<double>(plan.peak.total()), measured, 0.03 * measured) << Summary(plan);
  EXPECT_THAT(Summary(plan), testing::HasSubstr(", buckets "));
}

// What a rank keeps of 32k tokens falls as 1 / ranks; its keys and values of all of them do not,
// but there are those of one layer at a time.
TEST(MemoryPlanTest, ContextParallelRanksShareOutLongSequences) {
  Case c{"", 1, 32768, 1, 1, Shape(256, 32768, 4, 4, 128, {.n_kv_head = 1, .loss_chunk = 1024})};
  const MemoryPlan alone = Plan(c);
  const auto activations = [](const MemoryPlan& plan) {
    return static_cast<double>(plan.largest.activations);
  };
  for (const int ranks : {2, 8}) {
    const auto group = dist::MakePlannedGroup(ranks);
    c.context = std::make_shared<dist::ContextRanks>(group.get(), ranks, /*apart=*/true);
    const MemoryPlan plan = Plan(c);
    EXPECT_NEAR(activations(plan) * ranks, activations(alone), 0.03 * activations(alone));
    // With what a layer gathers; weights and state are whole on each rank.
    const auto of_tokens = [](const MemoryPlan& p) {
      return static_cast<double>(p.peak.activations + p.peak.workspace);
    };
    EXPECT_LT(of_tokens(plan), 1.35 * of_tokens(alone) / ranks)
        << Summary(plan) << "; alone " << Summary(alone);
  }
}

// What stays alive between two steps: weights, state, buckets and staging.
TEST(MemoryPlanTest, StagingOfTwoRanksIsWhatStays) {
  const Case c{"", 2, 32, 2, 1, Shape(211, 32, 3, 4, 96)};
  struct Sum {
    const char* name;
    dist::ReducerOptions options;
  };
  dist::ReducerOptions bf16 = Summing(dist::GradientSum::kFast, 4);
  bf16.hook = dist::Bf16Sum();
  bf16.lanes = 2;
  for (const Sum& sum : {Sum{"ordered", Summing(dist::GradientSum::kOrdered, 4)}, Sum{"bf16", bf16},
                         Sum{"fast", Summing(dist::GradientSum::kFast, 4)}}) {
    const MemoryPlan plan = PlanOfRanks(c, sum.options, 2);
    const int64_t before = GetAllocator(kCpu).stats().live_bytes;
    std::barrier all(2);
    std::atomic<int64_t> live = 0;
    dist::RunInProcess(2, [&](dist::ProcessGroup& group) {
      TrainRank<dist::DataParallel>(&group, c, sum.options, [&] {
        all.arrive_and_wait();
        if (group.rank() == 0) live = GetAllocator(kCpu).stats().live_bytes - before;
        all.arrive_and_wait();
      });
    });
    const MemoryKinds& k = plan.largest;
    const double planned =
        2.0 * static_cast<double>(k.parameters + k.optimizer + k.gradients + k.buckets);
    // Batches that are read ahead, and scalars.
    EXPECT_NEAR(static_cast<double>(live), planned, 0.03 * planned)
        << sum.name << ": " << Summary(plan);
    EXPECT_EQ(k.buckets > 0, sum.name != std::string("fast")) << "the library has its own memory";
  }
}

// Between two steps each rank has its parts of weights, gradients and state, and what sums
// gradients keeps; within a step at most what is planned, which is far less than without sharding.
class MemoryOfShards : public testing::TestWithParam<int> {};

TEST_P(MemoryOfShards, IsWhatTheAllocatorMeasures) {
  const int ranks = GetParam();
  const Case c{"", 1, 16, 2, 1, Shape(211, 16, 8, 4, 192, {.tie_embeddings = false})};
  Gpt shape(c.model);
  const int64_t f32 = 4 * shape.NumParameters();
  // Bytes with padding: a rank's parts of all units; all of a block.
  int64_t part = 0;
  const auto shard_of = [&](const Module& unit) {
    std::vector<int64_t> numels;
    for (const auto& p : unit.Parameters()) numels.push_back(p->logical_shape().numel());
    const int64_t bytes = 4 * dist::PlanFlat(numels, ranks, 1).shard;
    part += bytes;
    return bytes;
  };
  shard_of(*shape.embedding());
  shard_of(*shape.head());
  int64_t block = 0;
  for (int64_t i = 0; i < c.model.n_layer; ++i) block = ranks * shard_of(*shape.blocks()[i]);
  for (const dist::Reshard reshard : {dist::Reshard::kAfterForward, dist::Reshard::kAfterStep}) {
    const dist::ShardOptions options{.reshard = reshard,
                                     .sum = dist::GradientSum::kOrdered,
                                     .micro_batches = ranks * c.grad_accum};
    const MemoryPlan plan = PlanMemory(
        {.model = [&] { return Make(c, kMeta); },
         .optimizer =
             [](LanguageModel& m) { return std::make_unique<optim::AdamW>(m.Parameters()); },
         .batch_size = c.batch_size,
         .window = c.window,
         .grad_accum = c.grad_accum,
         .clip = c.clip,
         .shard = options,
         .ranks = ranks,
         .shard_ranks = ranks});
    Allocator& allocator = GetAllocator(kCpu);
    const int64_t before = allocator.stats().live_bytes;
    allocator.ResetPeak();
    std::barrier all(ranks);
    std::atomic<int64_t> live = 0;
    dist::RunInProcess(ranks, [&](dist::ProcessGroup& group) {
      TrainRank<dist::FullyShard>(&group, c, options, [&] {
        all.arrive_and_wait();
        if (group.rank() == 0) live = allocator.stats().live_bytes - before;
        all.arrive_and_wait();
      });
    });
    const int64_t peak = allocator.stats().peak_bytes - before;
    // All weights and two moments, once; two shards of gradients on each rank, and staging for the
    // largest unit, a block. Then batches that are read ahead, and scalars.
    const int64_t exact = 3 * f32 + ranks * (2 * part + block);
    EXPECT_GE(live.load(), exact);
    EXPECT_LT(live.load(), exact + exact / 100);
    // The ranks' peaks are at about the same time.
    const double planned = ranks * static_cast<double>(plan.peak.total());
    EXPECT_LT(static_cast<double>(peak), 1.03 * planned) << Summary(plan);
    EXPECT_GT(static_cast<double>(peak), 0.8 * planned) << Summary(plan);
    // A rank's parts of weights, moments and gradients, which two micro-batches need twice; whole
    // weights, or those of three units; whole gradients of two units, and staging for one.
    const int64_t weights = reshard == dist::Reshard::kAfterStep ? ranks * part : 3 * block;
    EXPECT_LE(plan.peak.total(),
              5 * part + weights + 3 * block + plan.largest.activations + plan.largest.workspace)
        << Summary(plan);
  }
}

// Zhao et al. 2023: a rank of N has 1 / N of the bf16 weights, of their f32 originals and moments,
// and of the f32 gradients; whole weights of a block and of the one that is gathered meanwhile;
// whole gradients of a block and of the one that is being summed. What is communicated is padded.
TEST_P(MemoryOfShards, IsWhatTheFormulaSays) {
  const int ranks = GetParam();
  const Case c{"", 1, 16, 2, 1, Shape(211, 16, 8, 4, 192, {.tie_embeddings = false}), DType::kBF16};
  Gpt shape(c.model);
  std::vector<int64_t> units;  // elements, with padding
  int64_t part = 0;            // elements of rank 0, without
  const auto add = [&](const Module& unit) {
    std::vector<int64_t> numels;
    for (const auto& p : unit.Parameters()) numels.push_back(p->logical_shape().numel());
    const dist::FlatLayout layout = dist::PlanFlat(numels, ranks, 1);
    units.push_back(layout.numel());
    for (size_t i = 0; i < numels.size(); ++i) {
      const ShardRange range = layout.RangeOf(i, numels[i], 0);
      part += range.end - range.begin;
    }
  };
  add(*shape.embedding());
  for (int64_t i = 0; i < c.model.n_layer; ++i) add(*shape.blocks()[i]);
  add(*shape.head());
  int64_t all = units[0], two = 0;
  for (size_t i = 1; i < units.size(); ++i) {
    all += units[i];
    two = std::max(two, units[i - 1] + units[i]);
  }
  const MemoryPlan plan = PlanMemory(
      {.model = [&] { return Make(c, kMeta); },
       .optimizer = [](LanguageModel& m) { return std::make_unique<optim::AdamW>(m.Parameters()); },
       .batch_size = c.batch_size,
       .window = c.window,
       .grad_accum = c.grad_accum,
       .clip = c.clip,
       .shard = dist::ShardOptions{.micro_batches = ranks * c.grad_accum},
       .ranks = ranks,
       .shard_ranks = ranks});
  EXPECT_NEAR(static_cast<double>(part), static_cast<double>(all) / ranks, 0.08 * all / ranks);
  EXPECT_EQ(plan.largest.parameters, 2 * part);
  EXPECT_EQ(plan.largest.optimizer, (4 + 4 + 4) * part);
  EXPECT_EQ(plan.largest.gathers, 2 * two);
  // And a few scalars: sums of squares.
  EXPECT_GE(plan.largest.gradients, 4 * all / ranks);
  EXPECT_LT(plan.largest.gradients, 4.01 * all / ranks);
  EXPECT_GE(plan.largest.buckets, 4 * two);
  EXPECT_LT(plan.largest.buckets, 4.2 * two);
}

INSTANTIATE_TEST_SUITE_P(Ranks, MemoryOfShards, testing::Values(2, 4),
                         testing::PrintToStringParamName());

// The buckets are those of the reducer.
TEST(MemoryPlanTest, BucketsAreTheReducers) {
  const Case c{"", 2, 32, 1, 1, Shape(211, 32, 3, 4, 96)};
  const auto options = Summing(dist::GradientSum::kOrdered, 1);
  const auto model = Make(c, kCpu);
  dist::DataParallel parallel(nullptr, *model, options);
  const StepState state(kCpu, 1);
  const TrainingScope scope(state);
  const Tensor ids = Tensor::Zeros({2, 32}, DType::kI32);
  Backward(model->Loss(ids, ids));
  int64_t bytes = 0, planned = 0;
  for (const dist::Bucket& b : parallel.reducer().buckets()) bytes += b.bytes();
  const auto parameters = model->Parameters();
  for (const dist::Bucket& b : dist::PlanReducerMemory(parameters, options, 1, kCpu).buckets)
    planned += b.bytes();
  EXPECT_NEAR(static_cast<double>(planned), static_cast<double>(bytes), 0.01 * bytes);
}

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
  // Except for a few scalars, and the copies of the biases that two branches per layer leave open.
  const int64_t biases = 2 * 2 * 64 * SizeOf(DType::kF32);
  EXPECT_NEAR(static_cast<double>(large.largest.activations - biases),
              4.0 * static_cast<double>(small.largest.activations - biases), 64);
  EXPECT_EQ(large.peak.parameters, small.peak.parameters);
  EXPECT_EQ(large.largest.gradients, small.largest.gradients);
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
