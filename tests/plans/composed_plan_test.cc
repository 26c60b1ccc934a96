// Stages, layers, weights and samples divided among ranks at once: losses, norms, weights and
// optimizer state of ordered runs are those of one process.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <limits>

#include "models/gpt/generate.h"
#include "tests/dist/gpu_ranks.h"
#include "tests/dist/in_process.h"
#include "tests/models/training.h"
#include "tests/plans/plan_run.h"

namespace lockstep::models {
namespace {

using enum dist::PipelineKind;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// The matrices have several chunks of the norm, so that ranks cut them.
Task Gpt2(DType dtype) {
  Task task{.model = SmallGpt(/*dropout=*/0.1), .dtype = dtype, .micro_batches = 8, .steps = 4};
  task.model.vocab_size = 32;
  task.model.n_layer = 3;
  task.model.n_head = 4;
  task.model.n_embd = 96;
  task.model.bias = true;
  task.model.tie_embeddings = false;
  task.optim.clip = 0.05;  // below the norms, so that a norm of some ranks would show
  task.virtual_tp = 4;
  return task;
}

Task Llama(DType dtype) {
  Task task = LlamaLike(Gpt2(dtype));
  task.model.n_kv_head = 2;
  return task;
}

// With a head of keys for each virtual part, whose norms have a gradient in each.
Task Qwen3(DType dtype) {
  Task task = Llama(dtype);
  task.model.n_kv_head = 4;
  task.model.head_dim = 12;
  task.model.qk_norm = nn::QkNorm::kHead;
  return task;
}

Plan Sharded(const Plan& plan) { return ByShards(plan, dist::Zero3()); }

std::vector<Plan> PairsOfModes() {
  return {Sharded({.shards = 2, .tp = 2}),
          ByShards({.shards = 2, .tp = 4}, dist::Zero1()),
          ByShards({.shards = 2, .copies = 2, .tp = 2}, dist::Zero2()),
          Sharded({.shards = 4, .in_memory = true}),  // with parts, which each rank has all of
          {.tp = 2, .pp = 2, .schedule = k1F1B},
          {.tp = 4, .pp = 2, .schedule = kZeroBubbleV},
          {.copies = 2, .tp = 2, .pp = 2, .schedule = kZeroBubbleH1},
          Sharded({.shards = 2, .pp = 2, .schedule = k1F1B}),
          ByShards({.shards = 2, .copies = 2, .pp = 2, .schedule = kInterleaved}, dist::Zero2()),
          ByShards({.shards = 4, .pp = 2, .schedule = kZeroBubbleH1}, dist::Zero1())};
}

TEST(ComposedPlan, PairsOfModesInF32) { ExpectSameBits(Gpt2(DType::kF32), PairsOfModes()); }

TEST(ComposedPlan, PairsOfModesOfAGemma) {
  ExpectSameBits(GemmaLike(Qwen3(DType::kBF16)), PairsOfModes());
}

TEST(ComposedPlan, PairsOfModesOfALlamaInBF16) {
  ExpectSameBits(Llama(DType::kBF16), PairsOfModes());
}

TEST(ComposedPlan, PairsOfModesOfModernRecipes) {
  ExpectSameBits(ModernLike(Gpt2(DType::kF32)), PairsOfModes());
  Task task = ModernLike(Llama(DType::kBF16));
  task.virtual_tp = 2;
  task.virtual_cp = 2;
  ExpectSameBits(task, {{.tp = 2, .cp = 2, .pp = 2, .schedule = k1F1B},
                        Sharded({.shards = 2, .tp = 2, .cp = 2})});
}

TEST(ComposedPlan, NormsOfQueriesAndKeys) {
  Task task = Qwen3(DType::kF32);
  task.optim.name = "muon";
  ExpectSameBits(task, {{.tp = 4, .pp = 2, .schedule = kZeroBubbleV},
                        {.copies = 2, .tp = 2, .pp = 2, .schedule = k1F1B},
                        Sharded({.shards = 2, .tp = 2, .pp = 2, .schedule = kInterleaved}),
                        ByShards({.shards = 2, .copies = 2, .tp = 2}, dist::Zero2())});
  task = Qwen3(DType::kBF16);
  task.virtual_tp = 1;
  task.virtual_cp = 2;
  ExpectSameBits(task, {{.cp = 2, .pp = 2, .schedule = kZeroBubbleH1},
                        Sharded({.shards = 2, .copies = 2, .cp = 2})});
  task.virtual_tp = 2;
  task.model.n_kv_head = 1;  // of which ranks have copies
  ExpectSameBits(task, {{.tp = 2, .cp = 2, .data_parallel = true},
                        {.tp = 2, .cp = 2, .pp = 2, .schedule = kZeroBubbleV},
                        Sharded({.shards = 2, .copies = 2, .tp = 2})});
}

// What a rank has exactly one virtual part of is cut into ranges where chunks end.
TEST(ComposedPlan, RangesOfSingleParts) {
  Task task = Gpt2(DType::kBF16);
  task.virtual_tp = 2;
  ExpectSameBits(task, {Sharded({.shards = 4, .tp = 2}),
                        Sharded({.shards = 2, .tp = 2, .pp = 2, .schedule = kZeroBubbleV})});
}

TEST(ComposedPlan, AllModesOnSixteenRanks) {
  for (const Task& task : {Gpt2(DType::kBF16), Llama(DType::kF32)}) {
    std::vector<Plan> plans = {
        Sharded({.shards = 2, .tp = 4, .pp = 2, .schedule = kZeroBubbleH1}),
        Sharded({.shards = 2, .copies = 2, .tp = 2, .pp = 2, .schedule = kInterleaved}),
        {.copies = 4, .tp = 2, .pp = 2, .schedule = kZeroBubbleV}};
    plans[1].recompute = ParseRecompute("block");
    ExpectSameBits(task, plans);
  }
}

TEST(ComposedPlan, OtherOptimizersAndALossScale) {
  const std::vector<Plan> plans = {
      Sharded({.shards = 2, .tp = 2, .pp = 2, .schedule = kZeroBubbleH1}),
      {.copies = 2, .tp = 2, .pp = 2, .schedule = kInterleaved}};
  Task task = Gpt2(DType::kF32);
  task.optim.name = "muon";  // which wants whole matrices
  ExpectSameBits(task, plans);
  task = Gpt2(DType::kF16);
  task.steps = 12;  // of which the first are skipped
  ExpectSameBits(task, plans);
}

// Both in every mode; the z-loss also where a chunk of the loss is not the whole.
TEST(ComposedPlan, ZLossAndAveragesOfWeights) {
  Task task = Gpt2(DType::kF32);
  task.model.z_loss = 0.01;
  task.optim.ema = 0.5;
  ExpectSameBits(task, PairsOfModes());
  Task without = task;
  without.model.z_loss = 0;
  EXPECT_NE(Difference(TrainAlone(task), TrainAlone(without)), "");
  task = Llama(DType::kBF16);
  task.model.z_loss = 0.01;
  task.model.loss_chunk = 5;
  task.optim.ema = 0.5;
  task.optim.name = "muon";
  task.virtual_tp = 2;
  task.virtual_cp = 2;
  ExpectSameBits(task, {{.tp = 2, .cp = 2, .pp = 2, .schedule = kZeroBubbleV},
                        {.copies = 2, .cp = 2, .data_parallel = true},
                        Sharded({.shards = 2, .tp = 2, .cp = 2}),
                        ByShards({.shards = 2, .copies = 2, .tp = 2}, dist::Zero1())});
}

// Their embedding and head are on the first and on the last rank, each with a part of the rows.
TEST(ComposedPlan, TiedWeights) {
  Task task = Gpt2(DType::kBF16);
  task.model.tie_embeddings = true;
  ExpectSameBits(task, {{.tp = 2, .pp = 2, .schedule = k1F1B},
                        {.copies = 2, .tp = 2, .pp = 2, .schedule = kZeroBubbleV},
                        Sharded({.shards = 2, .tp = 4}),
                        Sharded({.shards = 2, .tp = 2, .pp = 2, .schedule = kZeroBubbleV}),
                        Sharded({.shards = 2, .tp = 2, .pp = 2, .schedule = k1F1B})});
  task.virtual_tp = 1;
  task.virtual_cp = 2;
  ExpectSameBits(task, {{.cp = 2, .pp = 2, .schedule = k1F1B},
                        {.copies = 2, .cp = 2, .data_parallel = true},
                        Sharded({.shards = 2, .cp = 2}),
                        Sharded({.shards = 2, .cp = 2, .pp = 2, .schedule = kZeroBubbleV})});
}

// Parts of the experts, in layers of several stages.
TEST(ComposedPlan, Mixtures) {
  Task task = Llama(DType::kF32);
  task.model.mixture = {.n_expert = 8,
                        .n_expert_used = 2,
                        .n_inner = 48,
                        .n_shared = 20,
                        .balance_loss = 0.05,
                        .z_loss = 0.01};
  task.model.n_dense = 1;
  ExpectSameBits(task, {{.tp = 2, .pp = 2, .schedule = kZeroBubbleH1},
                        Sharded({.shards = 2, .tp = 2}),
                        Sharded({.shards = 2, .tp = 2, .pp = 2, .schedule = kInterleaved})});
}

// Whose tensor-parallel ranks route whole chunks, and compute the shared expert for these.
TEST(ComposedPlan, MixturesOfPartsOfSequencesAndOfLayers) {
  Task task = Llama(DType::kF32);
  task.model.mixture = {.n_expert = 8, .n_expert_used = 2, .n_inner = 48, .n_shared = 20};
  task.model.mixture.shared_gate = true;
  task.model.mixture.balance_loss = 0.05;
  task.model.mixture.z_loss = 0.01;
  task.model.n_dense = 1;
  task.virtual_tp = 2;
  task.virtual_cp = 2;
  std::vector<Plan> plans = {{.tp = 2, .cp = 2, .data_parallel = true},
                             {.copies = 2, .tp = 2, .data_parallel = true},
                             {.copies = 2, .cp = 2, .data_parallel = true},
                             Sharded({.shards = 2, .tp = 2, .cp = 2}),
                             {.tp = 2, .cp = 2, .pp = 2, .schedule = kZeroBubbleV}};
  plans[0].recompute = ParseRecompute("block");
  ExpectSameBits(task, plans);
  task = Gpt2(DType::kBF16);
  task.virtual_tp = 2;
  task.virtual_cp = 2;
  task.model.mixture = {.n_expert = 4, .n_expert_used = 2, .n_inner = 48};
  task.model.mixture.router.score = RouterScore::kSigmoid;
  task.model.mixture.bias_rate = 0.01;
  ExpectSameBits(task, {{.tp = 2, .cp = 2, .data_parallel = true},
                        {.tp = 2, .cp = 2, .pp = 2, .schedule = kInterleaved}});
}

TEST(ComposedPlan, PartsOfSequences) {
  Task task = Llama(DType::kF32);
  task.virtual_tp = 1;
  task.virtual_cp = 2;
  const std::vector<Plan> plans = {
      {.cp = 2, .pp = 2, .schedule = kZeroBubbleV},
      Sharded({.shards = 2, .cp = 2}),
      Sharded({.shards = 2, .copies = 2, .cp = 2, .pp = 2, .schedule = kZeroBubbleH1})};
  ExpectSameBits(task, plans);
  task = Gpt2(DType::kBF16);
  task.virtual_tp = 1;
  task.virtual_cp = 4;
  ExpectSameBits(task, plans);
}

// Each chunk of a sequence is computed by ranks that split the layers.
TEST(ComposedPlan, PartsOfSequencesAndOfLayers) {
  for (Task task :
       {Llama(DType::kF32), Qwen3(DType::kF32), Gpt2(DType::kBF16), Gpt2(DType::kF16)}) {
    task.virtual_tp = 2;
    task.virtual_cp = 2;
    task.model.tie_embeddings = task.dtype == DType::kBF16;
    if (task.dtype == DType::kF16) task.steps = 12;  // of which the first are skipped
    std::vector<Plan> plans = {{.tp = 2, .cp = 2, .data_parallel = true},
                               {.copies = 2, .tp = 2, .data_parallel = true},
                               Sharded({.shards = 2, .cp = 2}),
                               Sharded({.shards = 2, .copies = 2, .tp = 2, .cp = 2}),
                               {.tp = 2, .cp = 2, .pp = 2, .schedule = kZeroBubbleV}};
    plans[0].recompute = ParseRecompute("block");
    ExpectSameBits(task, plans);
  }
}

TEST(ComposedPlan, AllModesAndPartsOfSequencesOnSixteenRanks) {
  for (Task task : {Gpt2(DType::kBF16), Llama(DType::kF32)}) {
    task.virtual_tp = 2;
    task.virtual_cp = 2;
    ExpectSameBits(task,
                   {{.copies = 2, .tp = 2, .cp = 2, .pp = 2, .schedule = kZeroBubbleH1},
                    ByShards({.shards = 2, .tp = 2, .cp = 2, .pp = 2, .schedule = kInterleaved},
                             dist::Zero2()),
                    Sharded({.shards = 2, .copies = 2, .tp = 2, .cp = 2})});
  }
}

TEST(ComposedPlan, GoesOnByAnotherPlan) {
  const Task task = Gpt2(DType::kBF16);
  const Outcome alone = TrainAlone(task);
  const std::vector<Plan> plans = {
      {.tp = 4, .pp = 2, .schedule = kZeroBubbleH1},
      Sharded({.shards = 2, .tp = 2, .pp = 2, .schedule = kZeroBubbleV}),
      Sharded({.shards = 4, .tp = 2}),
      {.data_parallel = true},
      Sharded({.shards = 2, .copies = 2, .pp = 2, .schedule = kInterleaved}),
      {.copies = 2, .tp = 4, .data_parallel = true}};
  for (size_t i = 0; i + 1 < plans.size(); ++i) {
    const Outcome half = TrainBy(task, plans[i], task.steps / 2);
    const Outcome whole = TrainBy(task, plans[i + 1], task.steps - task.steps / 2, &half);
    EXPECT_EQ(Difference(whole, alone), "") << plans[i] << ", then " << plans[i + 1];
  }
}

TEST(ComposedPlan, SameBitsOnGpus) {
  SKIP_WITHOUT_GPUS(4);
  // What a simulated GPU computes in seconds.
  Task task = Gpt2(DType::kBF16);
  task.model.n_layer = 2;
  task.model.n_embd = 16;
  task.micro_batches = 4;
  task.virtual_tp = 2;
  task.steps = 2;
  const Outcome alone = TrainAlone(task, /*on_gpu=*/true);
  Plan offloads = Sharded({.shards = 2, .tp = 2});
  offloads.offload = {.activations = true, .optimizer = true, .weights = true};
  for (const Plan& plan : {offloads, Plan{.tp = 2, .pp = 2, .schedule = kZeroBubbleH1},
                           Sharded({.shards = 2, .pp = 2, .schedule = kZeroBubbleV})}) {
    EXPECT_EQ(Difference(TrainBy(task, plan, task.steps, nullptr, true), alone), "") << plan;
  }
  task.virtual_cp = 2;
  const Outcome of_chunks = TrainAlone(task, /*on_gpu=*/true);
  offloads = {.tp = 2, .cp = 2, .data_parallel = true};
  offloads.offload = {.activations = true, .optimizer = true, .weights = true};
  Plan sharded = Sharded({.shards = 2, .cp = 2});
  sharded.offload = offloads.offload;
  for (const Plan& plan : {offloads, sharded}) {
    EXPECT_EQ(Difference(TrainBy(task, plan, task.steps, nullptr, true), of_chunks), "") << plan;
  }
  task.model.mixture = {.n_expert = 4, .n_expert_used = 2, .n_inner = 24};
  Plan of_experts{.cp = 4, .ep = 2, .data_parallel = true};
  of_experts.offload = offloads.offload;
  task.virtual_tp = 1;
  task.virtual_cp = 4;
  EXPECT_EQ(Difference(TrainBy(task, of_experts, task.steps, nullptr, true),
                       TrainAlone(task, /*on_gpu=*/true)),
            "");
}

TEST(ComposedPlan, GeneratesTheSameText) {
  const auto generate = [](const Task& task, const Plan& plan, bool kv_cache) {
    std::vector<int32_t> text;
    dist::RunInProcess(plan.ranks(), [&](dist::ProcessGroup& all) {
      PlanRun run(all, task, plan);
      const std::vector<int32_t> prompt = {1, 2, 3};
      const auto mine =
          Generate(run.model(), prompt, task.model.vocab_size, {.tokens = 5, .kv_cache = kv_cache});
      if (all.rank() == all.size() - 1) text = mine;
    });
    return text;
  };
  for (Task task : {Llama(DType::kF32), Qwen3(DType::kF32)}) {
    task.virtual_cp = 2;
    for (const bool kv_cache : {true, false}) {
      const auto alone = generate(task, {.data_parallel = true}, kv_cache);
      EXPECT_EQ(alone.size(), 5u);
      const Plan plan = Sharded({.shards = 2, .tp = 2, .pp = 2, .schedule = kZeroBubbleV});
      EXPECT_EQ(generate(task, plan, kv_cache), alone);
      EXPECT_EQ(generate(task, {.tp = 2, .cp = 2, .data_parallel = true}, kv_cache), alone);
    }
  }
}

// No rank has memory for what is on others.
TEST(ComposedPlan, RanksHoldTheirPartsOnly) {
  const Task task = Gpt2(DType::kF32);
  const Plan plan = Sharded({.shards = 2, .tp = 2, .pp = 2});
  std::vector<int64_t> elements(static_cast<size_t>(plan.ranks()));
  dist::RunInProcess(plan.ranks(), [&](dist::ProcessGroup& all) {
    PlanRun run(all, task, plan);
    for (const auto& p : run.model().Parameters()) elements[all.rank()] += p->value().numel();
  });
  const int64_t whole = Gpt(task.model).NumParameters();
  int64_t all = 0;
  for (const int64_t n : elements) {
    EXPECT_LT(n, whole / 4);  // a stage has two of the three blocks
    all += n;
  }
  EXPECT_GE(all, whole);
  EXPECT_LT(static_cast<double>(all), 1.05 * static_cast<double>(whole));  // norms are on several
}

// What each rank says of a step before which the rank `spoilt` lost a weight that it has.
std::vector<std::string> ErrorsOfBadWeight(const Task& task, const Plan& plan, int spoilt,
                                           const std::string& weight) {
  std::vector<std::string> errors(static_cast<size_t>(plan.ranks()));
  dist::RunInProcess(plan.ranks(), [&](dist::ProcessGroup& all) {
    PlanRun run(all, task, plan);
    for (const auto& [name, p] : run.model().NamedParameters()) {
      if (all.rank() != spoilt || name != weight) continue;
      Tensor value = p->value().Detach();
      value.Fill(std::numeric_limits<double>::quiet_NaN());
    }
    try {
      run.Train(1);
    } catch (const NonFiniteError& e) {
      errors[static_cast<size_t>(all.rank())] = e.what();
    }
  });
  return errors;
}

// Whichever of the ranks say so: those of the pipeline whose samples it was, and of all its layers'
// parts.
TEST(ComposedPlan, NamesTheRanksOfBadGradients) {
  // In the first stage of the second pipeline.
  for (const std::string& error : ErrorsOfBadWeight(
           Gpt2(DType::kF32), {.copies = 2, .tp = 2, .pp = 2}, 2, "h.0.mlp.c_fc.weight")) {
    EXPECT_THAT(error, AllOf(HasSubstr("first on rank 2 ("), HasSubstr("rank 3 ("),
                             HasSubstr("rank 6 ("), HasSubstr("rank 7 (")));
    for (const char* other : {"rank 0", "rank 1", "rank 4", "rank 5"}) {
      EXPECT_THAT(error, Not(HasSubstr(other)));
    }
  }
}

// Also where no data ranks sum gradients; all of these ranks compute the same samples.
TEST(ComposedPlan, NamesTheRanksOfBadGradientsOfOneCopy) {
  Task task = Gpt2(DType::kF32);
  task.virtual_tp = 2;
  task.virtual_cp = 2;
  for (const Plan& plan :
       {Plan{.pp = 2}, {.tp = 2, .data_parallel = true}, {.cp = 2, .data_parallel = true}}) {
    const std::vector<std::string> errors = ErrorsOfBadWeight(task, plan, 0, "h.0.mlp.c_fc.weight");
    for (const std::string& error : errors) {
      EXPECT_EQ(error, errors[0]) << plan;
      EXPECT_THAT(error, AllOf(HasSubstr("and the gradient of '"), HasSubstr("first on rank 0 ('"),
                               HasSubstr("rank 1 ('")))
          << plan;
    }
  }
}

}  // namespace
}  // namespace lockstep::models
