// Any plan, same bits: however a run is divided among ranks, and whatever is recomputed, offloaded
// or resumed, the losses, weights and optimizer state of ordered runs are those of one process.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <utility>

#include "core/cuda/device.h"
#include "dist/shard/flat_exchange.h"
#include "tests/dist/gpu_ranks.h"
#include "tests/models/training.h"
#include "tests/plans/plan_run.h"
#include "tests/sanitized.h"
#include "tests/selection.h"

namespace lockstep::models {
namespace {

class Draw {
 public:
  explicit Draw(uint32_t seed) : random_(seed) {}
  template <class T>
  T Of(std::initializer_list<T> values) {
    return values.begin()[random_() % values.size()];
  }

 private:
  std::mt19937 random_;
};

void DrawMixture(Draw& draw, GptConfig& m) {
  m.mixture = {.n_expert = draw.Of<int64_t>({2, 5, 8}),
               .n_expert_used = draw.Of<int64_t>({1, 2}),
               .n_inner = draw.Of<int64_t>({20, 33})};
  m.mixture.z_loss = draw.Of({0.0, 0.01});
  if (draw.Of({true, false})) {
    m.mixture.balance_loss = 0.05;
    m.mixture.router.normalise = draw.Of({true, false});
  } else {
    m.mixture.router.score = RouterScore::kSigmoid;
    m.mixture.bias_rate = 0.01;
  }
  m.mixture.n_shared = draw.Of<int64_t>({0, 0, 30});
  m.n_dense = m.n_layer > 1 ? draw.Of<int64_t>({0, 1}) : 0;
}

// Draws wider heads, and norms of their queries and keys.
void DrawHeads(Draw& draw, GptConfig& m) {
  m.head_dim = draw.Of<int64_t>({0, 0, 12});
  m.qk_norm = draw.Of({nn::QkNorm::kHead, nn::QkNorm::kNone, nn::QkNorm::kNone});
}

// Draws ingredients of modern recipes.
void DrawRecipe(Draw& draw, GptConfig& m) {
  m.init_zero = draw.Of({false, false, true});
  m.embed_norm = draw.Of({false, true});
  m.embed_mix = draw.Of({false, true});
  m.value_embed = draw.Of({false, false, true});
  if (m.n_kv_head > 0) m.activation = draw.Of({m.activation, nn::MlpActivation::kRelu2});
  if (m.norm == NormKind::kRmsNorm && m.norm_offset == 0) m.norm_weight = draw.Of({true, false});
}

// Draws adapters, beside which all else is frozen.
void DrawAdapters(Draw& draw, const Task& task, GptConfig& m) {
  m.lora = {.rank = draw.Of<int64_t>({1, 3}),
            .alpha = 12,
            .dropout = draw.Of({0.0, 0.1}),
            .targets = draw.Of<std::string>({"all", "all", "*attn*"})};
  // Tensor-parallel ranks cut a base of 4 bits between its blocks of 64, which these models lack.
  m.lora.base = draw.Of<std::string>({"model", "nf4", "nf4_single"});
  if (task.virtual_tp > 1) m.lora.base = "model";
  // Tensor-parallel ranks compute shared experts for the whole sequence, whose mask is not cut.
  if (m.mixture.n_shared > 0 && task.virtual_tp > 1) m.lora.dropout = 0;
}

// What a model needs whose layers may be split across ranks.
void MakeDivisible(Draw& draw, Task& task) {
  GptConfig& m = task.model;
  m.n_head = 4;
  m.n_embd = draw.Of<int64_t>({16, 32, 96});
  if (m.n_inner == 50) m.n_inner = 48;
  if (m.mixture.n_expert > 0) m.mixture.n_expert = draw.Of<int64_t>({4, 8});
  // Queries differ in number from keys and values: stochastic rounding of parts of a matrix with
  // segments of unequal length is refused.
  if (m.n_kv_head == 0) return;
  task.optim.master_weights = true;
  task.optim.state_dtype = "fp32";
}

// Draws what belongs to the optimizers of recipes. By a copy, so that other tasks stay as they
// were.
void DrawRates(Draw draw, Task& task) {
  OptimOptions& o = task.optim;
  o.matrix_lr = draw.Of({0.0, 0.02});
  o.embedding_lr = draw.Of({0.0, 0.01});
  o.unembedding_lr = draw.Of({0.0, 3e-3});
  o.scalar_lr = draw.Of({0.0, 0.01});
  o.decay_embeddings = draw.Of({true, false});
  if (o.name == "muon") {
    o.muon_scale = draw.Of<std::string>({"match_rms_adamw", "original"});
    o.muon_split = draw.Of({true, true, false});
    o.muon_dtype = draw.Of<std::string>({"fp32", "fp32", "bf16"});
  }
  if (o.name != "muon" && o.name != "adamw") return;
  o.weight_decay_schedule = draw.Of<std::string>({"constant", "linear"});
  o.cautious_weight_decay = draw.Of({true, false});
  o.decay_steps = task.steps;
}

Task DrawTask(Draw& draw) {
  Task task;
  GptConfig& m = task.model;
  m = SmallGpt(draw.Of({0.0, 0.1}));
  m.vocab_size = draw.Of<int64_t>({13, 29, 259});
  m.n_layer = draw.Of<int64_t>({1, 2, 3});
  // The largest have matrices of several chunks of the norm, which are cut.
  m.n_embd = draw.Of<int64_t>({8, 24, 36, 76, 76});
  m.tie_embeddings = draw.Of({true, false});
  m.bias = draw.Of({true, false});
  if (draw.Of({true, false})) {  // Llama
    m.bias = false;
    m.norm = NormKind::kRmsNorm;
    m.activation = nn::MlpActivation::kSwiGlu;
    m.position = Position::kRope;
    m.n_kv_head = draw.Of<int64_t>({1, 2});
    m.n_inner = draw.Of<int64_t>({40, 50, 300});
    if (draw.Of({true, false, false})) task = GemmaLike(task);
  }
  if (draw.Of({true, false, false})) DrawMixture(draw, m);
  task.dtype = draw.Of({DType::kF32, DType::kF32, DType::kBF16, DType::kF16});
  task.optim.name = draw.Of<std::string>({"adamw", "adamw", "lion", "sgd", "muon"});
  task.optim.clip = draw.Of({0.0, 0.5, 0.05});
  if (task.dtype == DType::kBF16) {
    task.optim.master_weights = draw.Of({true, false});
    task.optim.state_dtype = draw.Of<std::string>({"fp32", "bf16"});
  }
  task.micro_batches = draw.Of<int64_t>({4, 8});
  task.virtual_tp = draw.Of<int64_t>({1, 2, 4});
  if (task.virtual_tp > 1) MakeDivisible(draw, task);
  // Chunks of a sequence have a token in each part.
  if (task.virtual_tp <= 2) {
    task.virtual_cp = std::min(draw.Of<int64_t>({1, 2, 4}), kWindow / (2 * task.virtual_tp));
  }
  DrawHeads(draw, m);
  if (draw.Of({true, false, false, false})) DrawAdapters(draw, task, m);
  DrawRecipe(draw, m);
  DrawRates(draw, task);
  return task;
}

// Draws a pipeline with at most as many stages as the model has parts.
void DrawPipeline(Draw& draw, const Task& task, Plan& plan) {
  using enum dist::PipelineKind;
  const int64_t parts = task.model.n_layer + 2;
  plan.pp = draw.Of<int64_t>({1, 2, 2, 3});
  plan.schedule = 2 * plan.pp <= parts ? draw.Of({k1F1B, kInterleaved, kZeroBubbleH1, kZeroBubbleV})
                                       : draw.Of({k1F1B, kZeroBubbleH1});
  if (plan.data_parallel) plan.copies = draw.Of<int64_t>({1, 2, 4});
}

// Draws across how many of the ranks of samples and sequences experts are split, too.
void DrawExpertRanks(Draw& draw, const Task& task, Plan& plan) {
  const int64_t experts = task.model.mixture.n_expert;
  const int64_t ranks = plan.is_sharded() ? plan.shards : plan.copies;
  if (experts == 0) return;
  if (task.micro_batches % (plan.shards * plan.copies) != 0) return;
  plan.ep = draw.Of<int64_t>({1, 2, 2, 4});
  while (ranks % plan.data_ranks_of_experts() != 0 || experts % (plan.ep * plan.tp) != 0)
    plan.ep /= 2;
}

// Draws how many ranks compute each layer or each sequence together, within the number left.
void DrawTensorRanks(Draw& draw, const Task& task, int64_t most, Plan& plan) {
  plan.tp = draw.Of<int64_t>({1, 2, 4});
  while (task.virtual_tp % plan.tp != 0 || plan.ranks() > most) plan.tp /= 2;
  plan.cp = draw.Of<int64_t>({1, 2, 4});
  while (task.virtual_cp % plan.cp != 0 || plan.ranks() > most) plan.cp /= 2;
}

Plan DrawPlan(Draw& draw, const Task& task, bool on_gpu) {
  Plan plan;
  plan.data_parallel = draw.Of({false, false, false, true});
  if (plan.data_parallel) {
    plan.copies = draw.Of<int64_t>({1, 2, 3, 4});
  } else {
    std::tie(plan.shards, plan.copies) = draw.Of<std::pair<int64_t, int64_t>>(
        {{1, 1}, {2, 1}, {2, 1}, {4, 1}, {4, 1}, {2, 2}, {1, 2}});
    plan.options.reshard = draw.Of({dist::Reshard::kAfterForward, dist::Reshard::kAfterForward,
                                    dist::Reshard::kAfterBackward, dist::Reshard::kAfterStep});
    plan.options.accumulate = draw.Of({dist::Accumulate::kShards, dist::Accumulate::kWhole});
    plan.options.sum = dist::GradientSum::kOrdered;
    plan.in_memory = draw.Of({true, false});
  }
  const int64_t most = on_gpu ? 4 : 8;
  if (draw.Of({true, false})) DrawPipeline(draw, task, plan);
  while (plan.ranks() > most) (plan.copies > 1 ? plan.copies : plan.shards) /= 2;
  DrawTensorRanks(draw, task, most, plan);
  DrawExpertRanks(draw, task, plan);
  // A rank that has the first stage and the last would cut a frozen tied weight twice.
  const bool frozen_tied = task.model.lora.rank > 0 && task.model.tie_embeddings;
  const bool has_both = plan.pp == 1 || plan.schedule == dist::PipelineKind::kZeroBubbleV;
  if (frozen_tied && plan.is_sharded() && has_both) plan.schedule = dist::PipelineKind::k1F1B;
  const bool llama = task.model.norm == NormKind::kRmsNorm;
  plan.recompute =
      ParseRecompute(draw.Of<std::string>({"none", "block", "block", "attention", "mlp",
                                           llama ? "rms_norm,swiglu" : "layer_norm,gelu"}));
  if (plan.recompute.part != RecomputeChoice::Part::kNone) {
    plan.recompute.layers = draw.Of<int64_t>({-1, -1, 1});
  }
  if (on_gpu) {
    plan.offload = {.activations = draw.Of({true, false}),
                    .optimizer = draw.Of({true, false}),
                    .weights = draw.Of({true, false})};
    using enum dist::PipelineKind;
    const bool later = plan.schedule == kZeroBubbleH1 || plan.schedule == kZeroBubbleV;
    if (later && !plan.is_sharded()) plan.offload.weights = false;
    if (task.model.lora.quantizes()) plan.offload.weights = false;
  }
  return plan;
}

// What a simulated GPU computes in seconds, by the kernels for tensor cores. The first tasks are of
// all dtypes and optimizers.
Task DrawGpuTask(int number) {
  constexpr uint32_t kFirst[] = {10, 2, 6, 4, 9};
  const auto at = static_cast<size_t>(number);
  Draw draw(at < std::size(kFirst) ? kFirst[at] : static_cast<uint32_t>(number));
  Task task = DrawTask(draw);
  task.steps = 2;
  task.model.vocab_size = 29;
  task.micro_batches = 4;
  task.model.n_embd = 16;
  task.model.n_layer = draw.Of<int64_t>({1, 2});
  task.model.n_dense = std::min(task.model.n_dense, task.model.n_layer - 1);
  return task;
}

int Number(const char* variable, int by_default) {
  const char* const text = std::getenv(variable);
  return text != nullptr ? std::atoi(text) : by_default;
}

// Plans of mixtures whose ranks also compute sequences together, of which few are drawn otherwise.
using Kind = bool (*)(const Plan&);
constexpr Kind kRare[] = {[](const Plan& p) { return p.ep > 1 && p.ep < p.cp; },
                          [](const Plan& p) { return p.cp > 1 && p.cp < p.ep; },
                          [](const Plan& p) { return p.cp > 1 && p.ep > 1 && p.pp > 1; },
                          [](const Plan& p) { return p.cp > 1 && p.tp > 1; }};

// Draws a task, and two plans of such a kind for it.
std::pair<Plan, Plan> DrawRare(Draw& draw, Kind kind, Task* task) {
  while (true) {
    *task = DrawTask(draw);
    if (task->model.mixture.n_expert == 0 || task->virtual_cp == 1) continue;
    std::vector<Plan> plans;
    for (int i = 0; i < 500 && plans.size() < 2; ++i) {  // some tasks have none
      const Plan plan = DrawPlan(draw, *task, /*on_gpu=*/false);
      if (kind(plan)) plans.push_back(plan);
    }
    if (plans.size() == 2) return {plans[0], plans[1]};
  }
}

// On GPUs two rounds have a task in common, and the run of one process. Otherwise each third round
// is of a rare kind.
void PlayRounds(int rounds, bool on_gpu) {
  const int seed = Number("PLAN_SEED", 0);
  if (seed != 0) std::printf("PLAN_SEED=%d\n", seed);
  Task task;
  Outcome alone;
  for (int round = 0; round < rounds && !testing::Test::HasFailure(); ++round) {
    Draw draw(static_cast<uint32_t>(seed + round));
    Plan first, second;
    if (!on_gpu && round % 3 == 2) {
      std::tie(first, second) = DrawRare(draw, kRare[round / 3 % std::size(kRare)], &task);
    } else {
      if (!on_gpu) task = DrawTask(draw);
      if (on_gpu && round % 2 == 0) task = DrawGpuTask(round / 2);
      first = DrawPlan(draw, task, on_gpu);
      second = DrawPlan(draw, task, on_gpu);
    }
    task.steps = Number("PLAN_STEPS", task.steps);
    const int before = task.steps / 2;
    if (!on_gpu || round % 2 == 0) {
      alone = TrainBy(task, {.data_parallel = true}, task.steps, nullptr, on_gpu);
    }
    std::string difference;
    try {
      const Outcome half = TrainBy(task, first, before, nullptr, on_gpu);
      const Outcome whole = TrainBy(task, second, task.steps - before, &half, on_gpu);
      difference = Difference(whole, alone);
    } catch (const std::exception& e) {
      difference = e.what();
    }
    EXPECT_EQ(difference, "") << "round " << round << " of seed " << seed << ": " << task << "; "
                              << first << "; then " << second;
  }
}

// By hand: PLAN_ROUNDS=2000 bazel-bin/tests/plans/any_plan_test --gtest_filter=*Cpu*, and with
// PLAN_STEPS=50 as many steps in each round, of which the second plan makes half. CI draws 30
// others for each commit, by PLAN_SEED.
TEST(AnyPlan, SameBitsOnTheCpu) {
  PlayRounds(Number("PLAN_ROUNDS", test::kSanitized   ? 4
                                   : test::TakesAll() ? 60
                                                      : 12),
             /*on_gpu=*/false);
}

// Parts of a vocabulary differ in size between tensor-parallel ranks; of what these share, all hold
// the same elements, or comparing them would find a difference.
TEST(AnyPlan, SameBitsWhereTensorRanksHaveUnequalParts) {
  Task task;
  task.model = SmallGpt(0.1);
  task.model.vocab_size = 29;
  task.model.n_embd = 16;
  task.model.n_head = 4;
  task.model.tie_embeddings = false;
  task.model.lora = {.rank = 3, .alpha = 12, .targets = "*attn*"};
  task.virtual_tp = 4;
  task.steps = 2;
  Plan plan{.shards = 2, .tp = 4};
  plan.options.sum = dist::GradientSum::kOrdered;
  EXPECT_EQ(Difference(TrainBy(task, plan, task.steps), TrainAlone(task)), "");
}

TEST(AnyPlan, SameBitsOnGpus) {
  SKIP_WITHOUT_GPUS(4);
  PlayRounds(Number("PLAN_GPU_ROUNDS", test::kSanitized   ? 1
                                       : test::TakesAll() ? 10
                                                          : 2),
             /*on_gpu=*/true);
}

// Whether a rank has some elements of a block's parameter, and another rank others.
bool CutsAParameter(const GptConfig& config, int64_t shards) {
  std::vector<int64_t> numels;
  Gpt model(config);
  for (const auto& p : model.blocks()[0]->Parameters()) {
    numels.push_back(p->logical_shape().numel());
  }
  const dist::FlatLayout layout = dist::PlanFlat(numels, shards, 1);
  for (size_t p = 0; p < numels.size(); ++p) {
    for (int64_t rank = 0; rank < shards; ++rank) {
      const ShardRange range = layout.RangeOf(p, numels[p], rank);
      if (range.begin < range.end && range.end - range.begin < numels[p]) return true;
    }
  }
  return false;
}

// The matrices of the drawn tasks are too small to be cut. Updates of parts of one: from the host
// in pieces, rounded stochastically by the place in the whole; and of matrices that ranks bring
// together for Muon.
TEST(AnyPlan, SameBitsOnGpusWhereParametersAreCut) {
  SKIP_WITHOUT_GPUS(4);
  Task task;
  task.model = SmallGpt(0.1);
  task.model.vocab_size = 29;
  task.model.n_layer = 1;
  task.model.n_embd = 128;
  task.dtype = DType::kBF16;
  task.optim.master_weights = false;
  task.optim.state_dtype = "bf16";
  task.optim.clip = 0.5;
  task.steps = 3;
  for (const std::string name : {"adamw", "muon"}) {
    task.optim.name = name;
    const Outcome alone = TrainBy(task, {.data_parallel = true}, task.steps, nullptr, true);
    Outcome before;
    for (const int64_t shards : {2, 4}) {
      ASSERT_TRUE(CutsAParameter(task.model, shards));
      Plan plan{.shards = shards};
      plan.options.sum = dist::GradientSum::kOrdered;
      plan.offload = {.activations = true, .optimizer = true, .weights = true};
      const int steps = shards == 2 ? 2 : 1;
      before = TrainBy(task, plan, steps, shards == 2 ? nullptr : &before, /*on_gpus=*/true);
    }
    EXPECT_EQ(Difference(before, alone), "") << name;
  }
}

}  // namespace
}  // namespace lockstep::models
