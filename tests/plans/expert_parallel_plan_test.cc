// Expert parallelism: however experts are split across ranks, losses, norms, loads, weights and
// optimizer state of ordered runs are those of one process.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "models/gpt/generate.h"
#include "tests/dist/gpu_ranks.h"
#include "tests/dist/in_process.h"
#include "tests/models/training.h"
#include "tests/plans/plan_run.h"

namespace lockstep::models {
namespace {

Task Softmax(DType dtype) {
  Task task{.model = SmallGpt(/*dropout=*/0.1), .dtype = dtype, .micro_batches = 8, .steps = 4};
  // Weights of experts have 19200 elements, so that chunks of the norm lie across ranks.
  task.model.n_embd = 48;
  task.model.mixture = {.n_expert = 8, .n_expert_used = 2, .n_inner = 50};
  task.model.mixture.n_shared = 20;
  task.model.mixture.shared_gate = true;
  task.model.mixture.balance_loss = 0.05;
  task.model.mixture.z_loss = 0.01;
  task.optim.clip = 0.05;  // below the norm of all steps
  return task;
}

Task Sigmoid(DType dtype) {
  Task task = LlamaLike(Softmax(dtype));
  task.model.n_dense = 1;
  nn::MixtureOptions& mixture = task.model.mixture;
  mixture.router.score = RouterScore::kSigmoid;
  mixture.balance_loss = 0;
  mixture.bias_rate = 0.01;
  mixture.n_shared = 0;
  mixture.shared_gate = false;
  return task;
}

// Whose layers may be split across ranks, in this many parts.
Task InParts(int64_t parts, Task task) {
  task.virtual_tp = parts;
  task.model.vocab_size = 16;
  task.model.n_head = 4;
  return task;
}

Plan Ranks(int64_t ranks, int64_t ep, const char* recompute = "none") {
  return {.copies = ranks, .ep = ep, .data_parallel = true, .recompute = ParseRecompute(recompute)};
}

std::vector<Plan> AllPlans() { return {Ranks(2, 1), Ranks(2, 2), Ranks(4, 2), Ranks(4, 4)}; }

TEST(ExpertParallelPlan, SameBitsInF32) { ExpectSameBits(Softmax(DType::kF32), AllPlans()); }

TEST(ExpertParallelPlan, SameBitsInBF16) { ExpectSameBits(Softmax(DType::kBF16), AllPlans()); }

TEST(ExpertParallelPlan, SameBitsBySigmoids) {
  ExpectSameBits(Sigmoid(DType::kF32), AllPlans());
  ExpectSameBits(Sigmoid(DType::kBF16), {Ranks(4, 2)});
}

// A micro-batch for each rank.
TEST(ExpertParallelPlan, SameBitsWithFewMicroBatches) {
  Task task = Softmax(DType::kF32);
  task.micro_batches = 4;
  ExpectSameBits(task, {Ranks(4, 2), Ranks(4, 4)});
  task.micro_batches = 12;  // three of which are added in turn
  ExpectSameBits(task, {Ranks(2, 2), Ranks(4, 2), Ranks(4, 4)});
}

// Gradients whose scale or parts were wrong would show in these updates, and in the norm, which
// clips nothing.
TEST(ExpertParallelPlan, SameGradients) {
  for (const double auxiliary : {0.0, 10.0}) {
    Task task = Softmax(DType::kF32);
    task.optim.name = "sgd";
    task.optim.momentum = 0;
    task.optim.clip = 0;
    task.steps = 2;
    task.model.mixture.balance_loss = task.model.mixture.z_loss = auxiliary;
    ExpectSameBits(task, {Ranks(2, 2), Ranks(4, 2), Ranks(4, 4)});
  }
}

TEST(ExpertParallelPlan, SameBitsByOtherOptimizers) {
  for (const char* name : {"muon", "lion"}) {
    Task task = Softmax(DType::kBF16);
    task.optim.name = name;
    task.optim.master_weights = false;
    ExpectSameBits(task, {Ranks(4, 2)});
  }
}

TEST(ExpertParallelPlan, SameBitsWithALossScale) {
  Task task = Softmax(DType::kF16);
  task.steps = 12;  // of which the first are skipped
  ExpectSameBits(task, {Ranks(4, 4)});
}

TEST(ExpertParallelPlan, SameBitsWithRecomputation) {
  Task task = Sigmoid(DType::kBF16);
  task.model.n_dense = 0;
  ExpectSameBits(task, {Ranks(2, 2, "block"), Ranks(4, 2, "mlp"), Ranks(4, 4, "rms_norm,swiglu")});
}

// All tokens go to the first experts, so that some ranks' have none.
TEST(ExpertParallelPlan, SameBitsWithoutTokensForARank) {
  Task task = Sigmoid(DType::kF32);
  task.model.init_std = 1e-8;  // of the router too: the scores are equal
  task.model.mixture.bias_rate = 0;
  task.steps = 2;
  const Outcome alone = TrainAlone(task);
  EXPECT_EQ(alone.loads.at(1), 0);
  for (const Plan& plan : AllPlans()) {
    EXPECT_EQ(Difference(TrainBy(task, plan, task.steps), alone), "") << plan;
  }
}

// ---- With other modes ----

Plan InPipelines(int64_t pp, Plan plan, dist::PipelineKind schedule = dist::PipelineKind::k1F1B) {
  plan.pp = pp;
  plan.schedule = schedule;
  return plan;
}

Plan OnTensorRanks(int64_t tp, Plan plan) {
  plan.tp = tp;
  return plan;
}

Plan OnContextRanks(int64_t cp, Plan plan) {
  plan.cp = cp;
  return plan;
}

Plan Sharded(int64_t shards, int64_t copies, int64_t ep,
             dist::Accumulate accumulate = dist::Accumulate::kShards) {
  Plan plan{.shards = shards, .copies = copies, .ep = ep};
  plan.options = {.accumulate = accumulate, .sum = dist::GradientSum::kOrdered};
  return plan;
}

// Each stage has experts of its own, or none; a rank may have several.
TEST(ExpertParallelPlan, SameBitsInPipelines) {
  using enum dist::PipelineKind;
  ExpectSameBits(Softmax(DType::kF32), {InPipelines(2, Ranks(2, 2)), InPipelines(2, Ranks(4, 2)),
                                        InPipelines(2, Ranks(2, 2, "block"), kZeroBubbleV),
                                        InPipelines(2, Ranks(2, 2), kInterleaved)});
  Task task = Sigmoid(DType::kBF16);
  task.model.tie_embeddings = false;
  ExpectSameBits(task, {InPipelines(2, Ranks(4, 4)), InPipelines(3, Ranks(2, 2)),
                        InPipelines(2, Ranks(2, 2), kZeroBubbleH1)});
}

TEST(ExpertParallelPlan, SameBitsWhereWeightsAreSharded) {
  using enum dist::Accumulate;
  Plan in_memory = Sharded(4, 1, 2);
  in_memory.in_memory = true;
  Plan kept = Sharded(4, 1, 2, kWhole);
  kept.options.reshard = dist::Reshard::kAfterStep;
  ExpectSameBits(Softmax(DType::kF32),
                 {Sharded(2, 1, 2), Sharded(4, 1, 2), Sharded(4, 1, 4), Sharded(2, 2, 2),
                  Sharded(4, 2, 2), Sharded(4, 1, 2, kWhole), in_memory, kept});
  ExpectSameBits(Sigmoid(DType::kBF16), {Sharded(4, 1, 2), Sharded(2, 2, 2, kWhole)});
}

// Weights of experts have 65536 elements, of which each rank has whole chunks of the norm, so that
// it takes them from the ranges.
TEST(ExpertParallelPlan, SameNormWhereRangesHaveItsChunks) {
  Task task = Softmax(DType::kF32);
  task.model.n_embd = 64;
  task.model.mixture.n_inner = 128;
  task.micro_batches = 4;
  task.steps = 2;
  ExpectSameBits(task, {Sharded(4, 1, 2), Sharded(2, 1, 2), Ranks(4, 2)});
}

TEST(ExpertParallelPlan, SameBitsWhereRanksShareOutLayers) {
  for (const int64_t parts : {2, 4}) {
    const Task task = InParts(parts, Softmax(DType::kF32));
    ExpectSameBits(task, {Ranks(2, 2), Ranks(4, 4), OnTensorRanks(2, Ranks(2, 2)),
                          OnTensorRanks(2, Ranks(4, 2)), OnTensorRanks(2, Ranks(4, 4)),
                          OnTensorRanks(2, Sharded(4, 1, 2)), Sharded(2, 1, 2)});
  }
  ExpectSameBits(
      InParts(4, Sigmoid(DType::kBF16)),
      {OnTensorRanks(4, Ranks(2, 2, "block")), OnTensorRanks(2, InPipelines(2, Ranks(2, 2)))});
}

// Experts are split across the ranks that compute a sequence together, some of these, or these and
// others.
TEST(ExpertParallelPlan, SameBitsWhereRanksShareOutSequences) {
  Task task = Softmax(DType::kF32);
  task.virtual_cp = 2;
  ExpectSameBits(task, {Ranks(2, 2), OnContextRanks(2, Ranks(1, 2)), OnContextRanks(2, Ranks(2, 2)),
                        OnContextRanks(2, Ranks(2, 4)), OnContextRanks(2, Ranks(4, 4)),
                        OnContextRanks(2, Ranks(4, 8, "block"))});
  task.virtual_cp = 4;
  ExpectSameBits(task, {Ranks(4, 4), OnContextRanks(2, Ranks(2, 4)), OnContextRanks(4, Ranks(1, 2)),
                        OnContextRanks(4, Ranks(2, 2)), OnContextRanks(4, Ranks(1, 4))});
  task = Sigmoid(DType::kBF16);
  task.virtual_cp = 2;
  ExpectSameBits(task, {OnContextRanks(2, Ranks(1, 2)), OnContextRanks(2, Ranks(2, 4, "mlp"))});
}

TEST(ExpertParallelPlan, SameBitsWithSequencesAndOtherModes) {
  using enum dist::PipelineKind;
  Task task = Softmax(DType::kF32);
  task.virtual_cp = 2;
  ExpectSameBits(task, {OnContextRanks(2, Sharded(2, 1, 2)), OnContextRanks(2, Sharded(2, 1, 4)),
                        OnContextRanks(2, Sharded(2, 2, 4)), OnContextRanks(2, Sharded(4, 1, 4)),
                        Sharded(4, 1, 2), OnContextRanks(2, InPipelines(2, Ranks(1, 2))),
                        OnContextRanks(2, InPipelines(2, Ranks(2, 4), kZeroBubbleH1))});
  task = InParts(2, Sigmoid(DType::kBF16));
  task.model.tie_embeddings = false;
  task.virtual_cp = 2;
  ExpectSameBits(task,
                 {OnTensorRanks(2, OnContextRanks(2, Ranks(1, 2))),
                  OnTensorRanks(2, OnContextRanks(2, Ranks(2, 4))), OnTensorRanks(2, Ranks(2, 2)),
                  OnTensorRanks(2, OnContextRanks(2, Sharded(2, 1, 4))),
                  OnTensorRanks(2, OnContextRanks(2, InPipelines(2, Ranks(1, 2), kZeroBubbleV))),
                  OnContextRanks(2, InPipelines(2, Sharded(2, 1, 4), kInterleaved))});
}

TEST(ExpertParallelPlan, SameBitsWithAllModes) {
  Task task = InParts(2, Sigmoid(DType::kF32));
  task.model.tie_embeddings = false;
  ExpectSameBits(task, {OnTensorRanks(2, InPipelines(2, Sharded(2, 1, 2))),
                        InPipelines(2, Sharded(4, 1, 2), dist::PipelineKind::kZeroBubbleH1),
                        InPipelines(2, Sharded(2, 2, 2, dist::Accumulate::kWhole))});
}

// Of these too, the scale of gradients would show.
TEST(ExpertParallelPlan, SameGradientsWithOtherModes) {
  Task task = InParts(2, Softmax(DType::kF32));
  task.optim.name = "sgd";
  task.optim.momentum = 0;
  task.optim.clip = 0;
  task.steps = 2;
  task.model.mixture.balance_loss = task.model.mixture.z_loss = 10;
  ExpectSameBits(task, {Sharded(4, 1, 2), InPipelines(2, Ranks(2, 2)),
                        OnTensorRanks(2, Ranks(2, 2)), OnTensorRanks(2, Sharded(2, 1, 2))});
  task.virtual_cp = 2;
  ExpectSameBits(task, {OnContextRanks(2, Ranks(1, 2)), OnContextRanks(2, Ranks(2, 4)),
                        OnTensorRanks(2, OnContextRanks(2, Sharded(2, 1, 4)))});
}

TEST(ExpertParallelPlan, OtherOptimizersWithOtherModes) {
  for (const char* name : {"muon", "lion"}) {
    Task task = InParts(2, Softmax(DType::kF32));
    task.optim.name = name;
    ExpectSameBits(task, {Sharded(4, 1, 2), OnTensorRanks(2, Sharded(2, 1, 2)),
                          OnTensorRanks(2, InPipelines(2, Ranks(2, 2)))});
  }
}

TEST(ExpertParallelPlan, GoesOnByAnotherPlan) {
  const Task task = Sigmoid(DType::kBF16);
  const Outcome alone = TrainAlone(task);
  const std::vector<Plan> plans = {Ranks(4, 4),      Ranks(2, 1),
                                   Ranks(4, 2),      Sharded(2, 1, 1),
                                   Sharded(4, 1, 2), InPipelines(2, Ranks(2, 2)),
                                   Ranks(2, 2),      {.data_parallel = true}};
  for (size_t i = 0; i + 1 < plans.size(); ++i) {
    const Outcome half = TrainBy(task, plans[i], task.steps / 2);
    const Outcome whole = TrainBy(task, plans[i + 1], task.steps - task.steps / 2, &half);
    EXPECT_EQ(Difference(whole, alone), "") << plans[i] << ", then " << plans[i + 1];
  }
}

TEST(ExpertParallelPlan, GoesOnWithOtherRanksOfASequence) {
  Task task = Sigmoid(DType::kF32);
  task.virtual_cp = 2;
  const Outcome alone = TrainAlone(task);
  const std::vector<Plan> plans = {OnContextRanks(2, Ranks(2, 4)), Ranks(2, 2),
                                   OnContextRanks(2, Sharded(2, 1, 4)),
                                   OnContextRanks(2, Ranks(1, 2)), OnContextRanks(2, Ranks(2, 1))};
  for (size_t i = 0; i + 1 < plans.size(); ++i) {
    const Outcome half = TrainBy(task, plans[i], task.steps / 2);
    const Outcome whole = TrainBy(task, plans[i + 1], task.steps - task.steps / 2, &half);
    EXPECT_EQ(Difference(whole, alone), "") << plans[i] << ", then " << plans[i + 1];
  }
}

TEST(ExpertParallelPlan, SameBitsOnGpus) {
  SKIP_WITHOUT_GPUS(2);
  // What a simulated GPU computes in seconds.
  Task task = Softmax(DType::kBF16);
  task.model.n_embd = 16;
  task.model.mixture.n_expert = 4;
  task.micro_batches = 4;
  task.steps = 2;
  const Outcome alone = TrainBy(task, {.data_parallel = true}, task.steps, nullptr, true);
  EXPECT_EQ(Difference(TrainBy(task, Ranks(2, 2), task.steps, nullptr, true), alone), "");
  task.virtual_cp = 2;
  const Plan of_sequence = OnContextRanks(2, Ranks(1, 2));
  EXPECT_EQ(Difference(TrainBy(task, of_sequence, task.steps, nullptr, true),
                       TrainBy(task, {.data_parallel = true}, task.steps, nullptr, true)),
            "");
}

TEST(ExpertParallelPlan, GeneratesTheSameText) {
  const Task task = Softmax(DType::kF32);
  const auto generate = [&](const Plan& plan) {
    std::vector<int32_t> text;
    dist::RunInProcess(plan.ranks(), [&](dist::ProcessGroup& all) {
      PlanRun run(all, task, plan);
      const std::vector<int32_t> prompt = {1, 2, 3};
      const auto mine = Generate(run.model(), prompt, task.model.vocab_size, {.tokens = 8});
      if (all.rank() == all.size() - 1) text = mine;
    });
    return text;
  };
  const auto alone = generate({.data_parallel = true});
  EXPECT_EQ(alone.size(), 8u);
  EXPECT_EQ(generate(Ranks(4, 2)), alone);
  EXPECT_EQ(generate(OnContextRanks(2, Ranks(2, 4))), alone);
}

// No rank has memory for the experts of others.
TEST(ExpertParallelPlan, RanksHoldTheirExpertsOnly) {
  Task task = Softmax(DType::kF32);
  task.virtual_cp = 2;
  const int64_t whole = Gpt(task.model).NumParameters();
  const int64_t experts = 2 * 2 * 19200;  // two layers, two matrices
  for (const Plan& plan : {Ranks(4, 4), OnContextRanks(2, Ranks(2, 4))}) {
    dist::RunInProcess(4, [&](dist::ProcessGroup& all) {
      PlanRun run(all, task, plan);
      int64_t elements = 0;
      for (const auto& p : run.model().Parameters()) elements += p->value().numel();
      EXPECT_EQ(elements, whole - experts + experts / 4);
    });
  }
}

}  // namespace
}  // namespace lockstep::models
