// Pipelines whose stages are sharded across data ranks, or partly in the host's memory: losses,
// norms, weights and optimizer state of ordered runs are those of one process. Embedding and head
// are tied, in stages of one rank or of two.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "tests/dist/gpu_ranks.h"
#include "tests/dist/in_process.h"
#include "tests/message_of.h"
#include "tests/models/training.h"
#include "tests/plans/plan_run.h"

namespace lockstep::models {
namespace {

using enum dist::PipelineKind;
using testing::HasSubstr;

// The embedding has several chunks of the norm, so that ranks cut it.
Task Gpt2(DType dtype) {
  Task task{.model = SmallGpt(/*dropout=*/0.1), .dtype = dtype, .micro_batches = 8, .steps = 4};
  task.model.vocab_size = 259;
  task.model.n_layer = 4;
  task.model.n_embd = 76;
  task.model.bias = true;
  task.optim.clip = 0.05;  // below the norms, so that a norm of some ranks would show
  return task;
}

Plan Sharded(const Plan& plan) { return ByShards(plan, dist::Zero2()); }

std::vector<Plan> AllPlans() {
  std::vector<Plan> plans;
  for (const dist::PipelineKind kind : kPipelineKinds) {
    plans.push_back(Sharded({.shards = 2, .pp = 1, .schedule = kind}));
    plans.push_back(Sharded({.shards = 2, .pp = 2, .schedule = kind, .in_memory = true}));
    plans.push_back(ByShards({.shards = 4, .pp = 2, .schedule = kind}, dist::Zero1()));
    plans.push_back(Sharded({.shards = 2, .copies = 2, .pp = 2, .schedule = kind}));
    plans.push_back(Sharded({.shards = 2, .pp = 3, .schedule = kind}));
  }
  return plans;
}

TEST(ShardedPipelinePlan, SameBitsInF32) { ExpectSameBits(Gpt2(DType::kF32), AllPlans()); }

TEST(ShardedPipelinePlan, SameBitsInBF16) { ExpectSameBits(Gpt2(DType::kBF16), AllPlans()); }

// Whose embedding is within one chunk, so that some ranks have no part of it.
TEST(ShardedPipelinePlan, SameBitsOfASmallEmbedding) {
  Task task = Gpt2(DType::kF32);
  task.model.vocab_size = 13;
  task.model.n_embd = 24;
  ExpectSameBits(task, {Sharded({.shards = 2, .pp = 2, .schedule = kZeroBubbleV}),
                        Sharded({.shards = 4, .pp = 3, .schedule = k1F1B})});
}

TEST(ShardedPipelinePlan, SameBitsWithALossScaleAndByMuon) {
  Task task = Gpt2(DType::kF16);
  task.steps = 12;  // of which the first are skipped
  const std::vector<Plan> plans = {Sharded({.shards = 2, .pp = 2, .schedule = kZeroBubbleH1}),
                                   Sharded({.shards = 2, .pp = 2, .schedule = kZeroBubbleV})};
  ExpectSameBits(task, plans);
  task = Gpt2(DType::kBF16);
  task.optim.name = "muon";
  ExpectSameBits(task, plans);
}

// As many micro-batches as ranks.
TEST(ShardedPipelinePlan, SameBitsWithFewMicroBatches) {
  Task task = Gpt2(DType::kF32);
  task.micro_batches = 2;
  ExpectSameBits(task, {Sharded({.shards = 2, .pp = 2, .schedule = kZeroBubbleV}),
                        Sharded({.shards = 2, .pp = 3, .schedule = kZeroBubbleH1})});
}

TEST(ShardedPipelinePlan, GoesOnByAnotherPlan) {
  const Task task = Gpt2(DType::kBF16);
  const Outcome alone = TrainAlone(task);
  const std::vector<Plan> plans = {Sharded({.shards = 2, .pp = 2, .schedule = kZeroBubbleV}),
                                   ByShards({.shards = 4}, dist::Zero3()),
                                   Sharded({.shards = 2, .pp = 3, .schedule = kZeroBubbleH1}),
                                   {.copies = 2, .pp = 2, .schedule = kZeroBubbleV}};
  for (size_t i = 0; i + 1 < plans.size(); ++i) {
    const Outcome half = TrainBy(task, plans[i], task.steps / 2);
    const Outcome whole = TrainBy(task, plans[i + 1], task.steps - task.steps / 2, &half);
    EXPECT_EQ(Difference(whole, alone), "") << plans[i] << ", then " << plans[i + 1];
  }
}

// No rank has memory for more than its part of its stages.
TEST(ShardedPipelinePlan, RanksHoldTheirPartsOnly) {
  const Task task = Gpt2(DType::kF32);
  const Plan plan = Sharded({.shards = 2, .pp = 2, .schedule = k1F1B});
  std::vector<int64_t> elements(4);
  dist::RunInProcess(4, [&](dist::ProcessGroup& all) {
    PlanRun run(all, task, plan);
    for (const auto& p : run.model().Parameters()) elements[all.rank()] += p->value().numel();
  });
  const int64_t tied = task.model.vocab_size * task.model.n_embd;  // on the last stage's, too
  EXPECT_EQ(elements[0] + elements[1] + elements[2] + elements[3],
            Gpt(task.model).NumParameters() + tied);
}

// Which a bug would tear apart unnoticed: both are updated by the same gradient.
TEST(ShardedPipelinePlan, ComparesTheCopiesOfATiedWeight) {
  const Task task = Gpt2(DType::kF32);
  const Plan plan = Sharded({.shards = 2, .pp = 2, .schedule = k1F1B});
  for (const bool wrong : {false, true}) {
    std::vector<std::string> errors(4);
    dist::RunInProcess(4, [&](dist::ProcessGroup& all) {
      PlanRun run(all, task, plan);
      run.Train(1);
      Tensor part = run.model().Parameters()[0]->value().Detach();
      if (wrong && all.rank() == 2)
        part.Slice(0, 0, 1).Fill(1);  // the first part of the last stage
      errors[all.rank()] =
          test::MessageOf<Error>([&] { run.parallel().CheckWeights("at the end"); });
    });
    for (const int rank : {0, 2}) {
      EXPECT_THAT(errors[rank], HasSubstr(wrong ? "the tied weights at the end" : "no error"));
    }
  }
}

// ---- On GPUs. ----

// What a simulated GPU computes in seconds.
Task OnGpu() {
  Task task = Gpt2(DType::kBF16);
  task.model.vocab_size = 29;
  task.model.n_layer = 3;
  task.model.n_embd = 16;
  task.micro_batches = 4;
  task.steps = 2;
  return task;
}

TEST(ShardedPipelinePlan, SameBitsOnGpus) {
  SKIP_WITHOUT_GPUS(4);
  ExpectSameBits(OnGpu(),
                 {Sharded({.shards = 2, .pp = 2, .schedule = k1F1B}),
                  Sharded({.shards = 2, .pp = 2, .schedule = kZeroBubbleV})},
                 /*on_gpu=*/true);
}

TEST(ShardedPipelinePlan, SameBitsWithTheHostsMemory) {
  SKIP_WITHOUT_GPUS(4);
  std::vector<Plan> plans;
  for (const dist::PipelineKind kind : kPipelineKinds) {
    plans.push_back({.pp = 2, .schedule = kind});
    const bool keeps = kind == k1F1B || kind == kInterleaved;
    plans.back().offload = {.activations = true, .optimizer = true, .weights = keeps};
  }
  plans.push_back(Sharded({.shards = 2, .pp = 2, .schedule = kZeroBubbleV}));
  plans.back().offload = {.activations = true, .optimizer = true, .weights = true};
  plans.push_back({.pp = 3, .schedule = k1F1B});
  plans.back().offload.weights = true;
  plans.back().recompute = ParseRecompute("block");
  plans.push_back({.copies = 2, .pp = 2, .schedule = k1F1B});
  plans.back().offload.activations = true;
  ExpectSameBits(OnGpu(), plans, /*on_gpu=*/true);
}

TEST(ShardedPipelinePlan, RefusesWeightsThatLaterGradientsNeed) {
  for (const dist::PipelineKind kind : {kZeroBubbleH1, kZeroBubbleV}) {
    Plan plan{.pp = 1, .schedule = kind};
    plan.offload.weights = true;
    EXPECT_THAT(
        test::MessageOf<InputError>([&] { TrainBy(Gpt2(DType::kF32), plan, 1); }),
        HasSubstr(StrCat("parallel.schedule = \"", Name(kind), "\" makes weight gradients when")));
  }
}

}  // namespace
}  // namespace lockstep::models
