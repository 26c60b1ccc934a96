// Memory plans of ranks among which samples, weights or sequences are divided.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>

#include "core/allocator.h"
#include "dist/data_parallel/data_parallel.h"
#include "dist/groups/planned_group.h"
#include "dist/shard/fully_shard.h"
#include "models/train/step/trainer.h"
#include "tests/dist/in_process.h"
#include "tests/models/memory/memory_case.h"

namespace lockstep::models {
namespace {

using Case = MemoryCase;

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
  const auto tokens = MemoryTokens();
  const auto model = Make(c, kCpu);
  Ranks parallel(group, *model, options);
  SampleRanks ranks(parallel);
  optim::AdamW adamw(model->Parameters(), c.adamw);
  data::Loader loader(tokens, data::Sampler(data::Order::kRandom, 3, tokens->size(), c.window),
                      {.batch_size = c.batch_size,
                       .micro_batches = parallel.micro_batches(),
                       .micro_order = parallel.micro_order()});
  Trainer trainer(*model, adamw, optim::LrSchedule({.lr = 1e-3, .decay_steps = 20}), loader,
                  {.micro_batches = parallel.micro_batches(), .clip = c.clip, .ranks = &ranks});
  for (int i = 0; i < 3; ++i) trainer.Step();
  at_rest();
}

// The plan of one of this many ranks.
template <class Ranks, class Options>
MemoryPlan PlanOfRanks(const Case& c, const Options& options, int ranks) {
  const auto group = ranks > 1 ? dist::MakePlannedGroup(ranks) : nullptr;
  return Plan(c, [&](LanguageModel& model) {
    return std::make_unique<SampleRanks>(std::make_unique<Ranks>(group.get(), model, options));
  });
}

// Buckets are also alive in forward, and the ordered sum of 8 micro-steps has 4 of each, also of
// the head's use of the tied embedding.
TEST(MemoryOfRanks, BucketsOfTheOrderedSumAreWhatTheAllocatorMeasures) {
  const Case c{"", 2, 32, 8, 1, Shape(211, 32, 3, 4, 96)};
  const auto reducer = Summing(dist::GradientSum::kOrdered, c.grad_accum);
  const MemoryPlan plan = PlanOfRanks<dist::DataParallel>(c, reducer, 1);
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
TEST(MemoryOfRanks, ContextParallelRanksShareOutLongSequences) {
  Case c{"", 1, 32768, 1, 1, Shape(256, 32768, 4, 4, 128, {.n_kv_head = 1, .loss_chunk = 1024})};
  const MemoryPlan alone = Plan(c);
  const auto activations = [](const MemoryPlan& plan) {
    return static_cast<double>(plan.largest.activations);
  };
  for (const int ranks : {2, 8}) {
    const auto group = dist::MakePlannedGroup(ranks);
    c.context = std::make_shared<dist::ContextRanks>(group.get(), ranks,
                                                     /*leaves_gradients_to_reducer=*/true);
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
TEST(MemoryOfRanks, StagingOfTwoRanksIsWhatStays) {
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
    const MemoryPlan plan = PlanOfRanks<dist::DataParallel>(c, sum.options, 2);
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
    const MemoryPlan plan = PlanOfRanks<dist::FullyShard>(c, options, ranks);
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
  const dist::ShardOptions options{.micro_batches = ranks * c.grad_accum};
  const MemoryPlan plan = PlanOfRanks<dist::FullyShard>(c, options, ranks);
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

}  // namespace
}  // namespace lockstep::models
