// Low-rank adapters in every parallel mode: however a run is divided among ranks, losses, norms,
// weights and optimizer state are those of one process; frozen weights have neither gradients nor
// state.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "dist/groups/planned_group.h"
#include "models/memory/memory_plan.h"
#include "models/train/parallelize.h"
#include "nn/lora/quantized_linear.h"
#include "tests/models/parsed_run.h"
#include "tests/models/training.h"
#include "tests/plans/plan_run.h"

namespace lockstep::models {
namespace {

using enum dist::PipelineKind;

Task Gpt2(DType dtype) {
  Task task{.model = SmallGpt(/*dropout=*/0.1), .dtype = dtype, .steps = 4};
  task.model.vocab_size = 32;
  task.model.n_head = 4;
  task.model.n_embd = 32;
  task.model.bias = true;
  task.optim.clip = 0.002;
  task.virtual_tp = 2;
  task.virtual_cp = 2;
  task.model.lora = {.rank = 3, .alpha = 12, .dropout = 0.2};
  return task;
}

Task Llama(DType dtype) {
  Task task = LlamaLike(Gpt2(dtype));
  task.model.tie_embeddings = false;
  task.model.n_kv_head = 2;
  task.model.n_inner = 48;
  return task;
}

void ExpectSameBitsOfAll(const std::vector<Plan>& plans) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    ExpectSameBits(Gpt2(dtype), plans);
    ExpectSameBits(Llama(dtype), plans);
  }
}

Plan DataParallel(int64_t copies) { return {.copies = copies, .data_parallel = true}; }

TEST(LoraPlan, TensorParallel) {
  std::vector<Plan> plans;
  for (const auto& [tp, dp] : {std::pair<int64_t, int64_t>{2, 1}, {1, 2}, {2, 2}}) {
    plans.push_back({.copies = dp, .tp = tp, .data_parallel = true});
  }
  ExpectSameBitsOfAll(plans);
}

// Ranks have parts of key heads, whose adapters are cut all the same.
TEST(LoraPlan, FewerKeyHeadsThanRanks) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t keys : {1, 2}) {
      Task task = Llama(dtype);
      task.virtual_tp = 4;
      task.virtual_cp = 1;
      task.model.n_kv_head = keys;
      ExpectSameBits(task, {{.tp = 2, .data_parallel = true}, {.tp = 4, .data_parallel = true}});
    }
  }
}

// A base of 4 bits, whose blocks of 64 values ranks do not cut.
Task Quantized(Task task, const std::string& base) {
  task.model.lora.base = base;
  task.model.n_embd = 128;
  if (task.model.n_inner > 0) task.model.n_inner = 256;
  task.steps = 3;
  return task;
}

// What rank `rank` of two has of a quantised model whose layers they compute together, in f32.
std::map<std::string, Tensor> PartsOfTwo(const GptConfig& config, int rank) {
  const auto group = dist::MakePlannedGroup(2, rank);
  Gpt model(config);
  model.AssignNames();
  ParallelizeLayers(model, std::make_shared<dist::TensorRanks>(group.get(), 2));
  model.Materialize(kCpu, /*seed=*/1);
  QuantizeWeights(model);
  std::map<std::string, Tensor> parts;
  for (const auto& [path, layer] : nn::QuantizedLayers(model)) {
    for (size_t i = 0; i < layer->num_matrices(); ++i) {
      parts[StrCat(path, i)] = ops::Nf4Dequantize(layer->matrix(i), DType::kF32);
    }
  }
  return parts;
}

// Of GPT-2's queries, keys and values, which are one matrix, a part has rows of each.
TEST(LoraPlan, PartsHaveTheCodesOfTheWhole) {
  const GptConfig config = Quantized(Gpt2(DType::kF32), "nf4").model;
  Gpt model(config);
  model.Materialize(kCpu, /*seed=*/1);
  QuantizeWeights(model);
  const std::map<std::string, Tensor> parts[] = {PartsOfTwo(config, 0), PartsOfTwo(config, 1)};
  for (const auto& [path, layer] : nn::QuantizedLayers(model)) {
    const Tensor whole = ops::Nf4Dequantize(layer->matrix(0), DType::kF32);
    const int dim = path.ends_with("c_proj") ? 1 : 0;
    const int64_t segments = path.ends_with("c_attn") ? 3 : 1;
    const int64_t own = whole.dim(dim) / segments / 2;
    for (int64_t r = 0; r < 2; ++r) {
      const Tensor& part = parts[r].at(path + "0");
      for (int64_t s = 0; s < segments; ++s) {
        EXPECT_EQ(part.Slice(dim, s * own, (s + 1) * own).Contiguous().ToVector<float>(),
                  whole.Slice(dim, (2 * s + r) * own, (2 * s + r + 1) * own)
                      .Contiguous()
                      .ToVector<float>())
            << path << ", rank " << r;
      }
    }
  }
}

TEST(LoraPlan, BlocksOfFourBitsAreNotCut) {
  Task narrow = Quantized(Gpt2(DType::kF32), "nf4");
  narrow.model.n_embd = 96;  // of which a rank would have 48 columns
  EXPECT_THAT([&] { PartsOfTwo(narrow.model, 0); },
              testing::ThrowsMessage<InputError>(
                  testing::AllOf(testing::HasSubstr("[96, 96] cannot be cut by its columns into 2"),
                                 testing::HasSubstr("parallel.tp"))));
}

std::vector<Plan> Sharded(Plan plan) {
  std::vector<Plan> plans;
  for (const dist::ShardOptions& options : {dist::Zero1(), dist::Zero2(), dist::Zero3()}) {
    plans.push_back(ByShards(plan, options));
  }
  plans.push_back(plans.back());
  plans.back().options.reshard = dist::Reshard::kAfterBackward;
  return plans;
}

// By buckets, and by shards of which some hold frozen weights only: those have no gradients.
TEST(LoraPlan, DataParallel) {
  std::vector<Plan> plans = {DataParallel(2), DataParallel(4)};
  for (const auto& [shards, copies] : {std::pair<int64_t, int64_t>{1, 1}, {2, 1}, {4, 1}, {2, 2}}) {
    for (Plan& plan : Sharded({.shards = shards, .copies = copies})) plans.push_back(plan);
  }
  plans.back().in_memory = true;
  ExpectSameBitsOfAll(plans);
}

TEST(LoraPlan, ContextParallel) {
  std::vector<Plan> plans;
  for (const auto& [tp, dp] : {std::pair<int64_t, int64_t>{1, 1}, {1, 2}, {2, 1}, {2, 2}}) {
    plans.push_back({.copies = dp, .tp = tp, .cp = 2, .data_parallel = true});
  }
  ExpectSameBitsOfAll(plans);
}

// Of as many stages as the model has parts, the first and the last have nothing to train.
TEST(LoraPlan, Pipelines) {
  std::vector<Plan> plans;
  for (const dist::PipelineKind kind : kPipelineKinds) {
    plans.push_back({.pp = 1, .schedule = kind});
    plans.push_back({.pp = 2, .schedule = kind});
    plans.push_back({.copies = 2, .pp = 2, .schedule = kind});
  }
  plans.push_back({.pp = 4, .schedule = k1F1B});
  plans.push_back({.copies = 2, .pp = 4, .schedule = kZeroBubbleH1});
  plans.push_back({.shards = 2, .pp = 4, .schedule = kZeroBubbleH1});
  ExpectSameBitsOfAll(plans);
  // Each matrix is updated by one rank.
  Task muon = Llama(DType::kF32);
  muon.optim.name = "muon";
  ExpectSameBits(muon, {{.pp = 4, .schedule = k1F1B}, {.shards = 2, .pp = 4, .schedule = k1F1B}});
}

TEST(LoraPlan, Composed) {
  std::vector<Plan> plans = {
      {.copies = 2, .tp = 2, .pp = 2, .schedule = k1F1B},
      {.tp = 2, .cp = 2, .pp = 2, .schedule = kInterleaved},
      {.shards = 2, .tp = 2, .pp = 2, .schedule = kZeroBubbleH1},
      {.shards = 2, .cp = 2, .pp = 2, .schedule = kZeroBubbleV},
  };
  for (Plan& plan : Sharded({.shards = 2, .tp = 2, .cp = 2})) plans.push_back(plan);
  const std::vector<std::string> recomputed = {"block", "attention", "mlp", "none"};
  for (size_t i = 0; i < plans.size(); ++i) {
    plans[i].recompute = ParseRecompute(recomputed[i % recomputed.size()]);
  }
  for (const DType dtype : {DType::kF32, DType::kBF16}) ExpectSameBits(Llama(dtype), plans);
}

// Only queries and values, without those of keys between them.
TEST(LoraPlan, QueriesAndValues) {
  for (Task task : {Llama(DType::kF32), Llama(DType::kBF16)}) {
    task.model.lora.targets = "q_proj,v_proj";
    task.optim.clip = 1e-4;
    ExpectSameBits(task, {DataParallel(2),
                          {.tp = 2, .cp = 2, .data_parallel = true},
                          ByShards({.shards = 2, .tp = 2}, dist::Zero3())});
  }
}

TEST(LoraPlan, GoesOnByAnotherPlan) {
  const std::vector<Plan> plans = {
      {.copies = 2, .tp = 2, .data_parallel = true},
      ByShards({.shards = 4}, dist::Zero3()),
      {.copies = 2, .pp = 2, .schedule = kZeroBubbleV},
      {.tp = 2, .cp = 2, .data_parallel = true},
      {.shards = 2, .tp = 2, .pp = 2},
      DataParallel(1),
  };
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Task task = Llama(dtype);
    task.steps = static_cast<int>(plans.size());
    Outcome outcome = TrainBy(task, plans[0], 1);
    for (size_t i = 1; i < plans.size(); ++i) outcome = TrainBy(task, plans[i], 1, &outcome);
    EXPECT_EQ(Difference(outcome, TrainAlone(task)), "") << task;
  }
}

// Of attention and shared experts, beside experts that are split across ranks.
TEST(LoraPlan, Mixtures) {
  Task task = Llama(DType::kF32);
  task.model.lora.dropout = 0;
  task.model.mixture = {.n_expert = 4, .n_expert_used = 2, .n_inner = 20};
  task.model.mixture.n_shared = 12;
  task.model.mixture.balance_loss = 0.5;
  task.model.n_dense = 1;
  ExpectSameBits(task, {{.copies = 2, .ep = 2, .data_parallel = true},
                        {.tp = 2, .cp = 2, .ep = 2, .data_parallel = true},
                        {.shards = 2, .ep = 2},
                        {.copies = 2, .ep = 2, .pp = 2}});
}

// Of experts, which ranks divide as they divide the experts.
TEST(LoraPlan, Experts) {
  Task task = Llama(DType::kF32);
  task.model.lora.dropout = 0;
  task.model.lora.targets = "all,experts.*";
  task.model.mixture = {.n_expert = 4, .n_expert_used = 2, .n_inner = 20};
  task.model.mixture.n_shared = 12;
  task.model.n_dense = 1;
  ExpectSameBits(task, {DataParallel(2),
                        ByShards({.shards = 2}, dist::Zero3()),
                        {.tp = 2, .data_parallel = true},
                        {.cp = 2, .data_parallel = true},
                        {.copies = 2, .ep = 2, .data_parallel = true},
                        {.cp = 2, .ep = 2, .data_parallel = true},
                        {.copies = 2, .tp = 2, .ep = 2, .data_parallel = true},
                        {.tp = 2, .cp = 2, .ep = 2, .data_parallel = true},
                        {.shards = 2, .ep = 2},
                        {.copies = 2, .ep = 2, .pp = 2}});
  task.dtype = DType::kBF16;
  task.model.lora.targets = "experts.*";
  ExpectSameBits(task, {{.tp = 2, .data_parallel = true},
                        {.copies = 2, .ep = 2, .data_parallel = true},
                        {.copies = 4, .ep = 2, .data_parallel = true},
                        {.shards = 2, .ep = 2},
                        {.copies = 2, .ep = 2, .pp = 2},
                        ByShards({.shards = 2}, dist::Zero3())});
  task.model.lora.dropout = 0.2;  // of data-parallel ranks, each of which has whole micro-batches
  task.virtual_tp = task.virtual_cp = 1;
  ExpectSameBits(task, {DataParallel(2), ByShards({.shards = 2}, dist::Zero3())});
}

TEST(LoraPlan, BaseOfFourBits) {
  std::vector<Plan> plans = Sharded({.shards = 2});
  for (Plan& plan : Sharded({.shards = 4})) plans.push_back(plan);
  plans.push_back(DataParallel(2));
  plans.push_back(ByShards({.shards = 2, .copies = 2}, dist::Zero3()));
  plans.push_back({.tp = 2, .data_parallel = true});
  plans.push_back({.cp = 2, .data_parallel = true});
  plans.push_back({.pp = 2, .schedule = k1F1B});
  plans.push_back({.copies = 2, .tp = 2, .cp = 2, .data_parallel = true});
  plans.push_back({.shards = 2, .tp = 2, .pp = 2, .schedule = k1F1B});
  plans.push_back(ByShards({.shards = 2, .tp = 2}, dist::Zero3()));
  const std::vector<std::string> recomputed = {"none", "block", "mlp"};
  for (size_t i = 0; i < plans.size(); ++i) {
    plans[i].recompute = ParseRecompute(recomputed[i % recomputed.size()]);
  }
  ExpectSameBits(Quantized(Gpt2(DType::kF32), "nf4"), plans);
  ExpectSameBits(Quantized(Llama(DType::kBF16), "nf4"), plans);
  ExpectSameBits(Quantized(Llama(DType::kF32), "nf4_single"), {plans.back()});
  Task some = Quantized(Llama(DType::kBF16), "nf4");
  some.model.lora.targets = "q_proj,v_proj";  // the other matrices are bases of none
  some.optim.clip = 1e-4;
  ExpectSameBits(some, {plans.back(), {.tp = 2, .data_parallel = true}});
}

// Embedding and head are trained as a whole, by the ranks that have them or their parts.
TEST(LoraPlan, SavedModules) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Task task = Llama(dtype);
    task.model.lora.modules_to_save = "lm_head,embed_tokens";
    ExpectSameBits(task, {DataParallel(2),
                          ByShards({.shards = 2}, dist::Zero3()),
                          {.tp = 2, .cp = 2, .data_parallel = true},
                          {.shards = 2, .tp = 2, .pp = 2, .schedule = kZeroBubbleV}});
  }
}

TEST(LoraPlan, BaseOfFourBitsGoesOnByAnotherPlan) {
  const std::vector<Plan> plans = {ByShards({.shards = 2}, dist::Zero3()),
                                   {.tp = 2, .data_parallel = true},
                                   {.copies = 2, .pp = 2, .schedule = kZeroBubbleV}};
  const Task task = Quantized(Llama(DType::kBF16), "nf4");
  Outcome outcome = TrainBy(task, plans[0], 1);
  for (size_t i = 1; i < plans.size(); ++i) outcome = TrainBy(task, plans[i], 1, &outcome);
  EXPECT_EQ(Difference(outcome, TrainAlone(task)), "");
}

// As planned, which is within a few percent of what is measured: on each rank there are 4 bytes of
// gradient and 8 of AdamW's state for each weight of the adapters, of which there are 1/40.
TEST(LoraPlan, FrozenWeightsTakeNeitherGradientsNorState) {
  using Arguments = std::vector<std::string>;
  for (const auto& [ranks, plan] :
       {std::pair<int64_t, Arguments>{1, {}},
        {2, {}},
        {2, {"--parallel.tp=2"}},
        {2, {"--parallel.cp=2"}},
        {4, {"--parallel.pp=4", "--parallel.schedule=zb_h1"}},
        {4, {"--parallel.pp=2", "--parallel.tp=2", "--parallel.schedule=zbv"}},
        {2, {"--parallel.shard=optimizer"}},
        {2, {"--parallel.shard=gradients"}},
        {4, {"--parallel.shard=full", "--parallel.shard_ranks=2"}},
        {4, {"--parallel.shard=full", "--parallel.tp=2"}}}) {
    Arguments arguments = {"--model.vocab_size=64", "--model.block_size=16",   "--model.n_layer=2",
                           "--model.n_head=4",      "--model.n_embd=128",      "--lora.rank=2",
                           "--train.batch_size=1",  "--train.grad_accum=4",    "--virtual.tp=2",
                           "--virtual.cp=2",        "--dist.reduction=ordered"};
    arguments.insert(arguments.end(), plan.begin(), plan.end());
    const ParsedRun run(arguments);
    const RunSetup setup = PrepareShape(run.options, run.config, kCpu, ranks);
    const Gpt whole(setup.model);
    int64_t adapters = 0;
    for (const auto& p : whole.Parameters()) {
      adapters += p->trainable() ? p->logical_shape().numel() : 0;
    }
    EXPECT_GT(whole.NumParameters(), 40 * adapters);
    const MemoryPlan memory = PlanMemory(setup);
    const std::string text = StrCat(testing::PrintToString(plan), ", ", adapters, " of ",
                                    whole.NumParameters(), "\n", Table(memory, kCpu));
    EXPECT_LE(memory.elements, adapters) << text;
    EXPECT_GT(memory.elements, 0) << text;
    EXPECT_EQ(memory.largest.optimizer, 8 * memory.elements) << text;
    // Of each micro-batch, while they are summed; padding of buckets.
    EXPECT_LE(memory.largest.gradients + memory.largest.buckets, 4 * (4 * adapters + 2048)) << text;
  }
}

}  // namespace
}  // namespace lockstep::models
