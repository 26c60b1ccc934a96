// With a given virtual.cp, a run has the same bits on any number of context-parallel ranks that
// divides it, times any number of data-parallel ones.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "core/allocator.h"
#include "core/autograd/engine.h"
#include "core/cuda/device.h"
#include "dist/context/parallelize_context.h"
#include "dist/context/shared_samples.h"
#include "dist/expert/share_experts.h"
#include "dist/groups/agreement.h"
#include "dist/mesh.h"
#include "models/train/parallelize.h"
#include "nn/mixture/experts.h"
#include "nn/precision.h"
#include "tests/dist/gpu_ranks.h"
#include "tests/dist/in_process.h"
#include "tests/message_of.h"
#include "tests/models/training.h"
#include "tests/plans/plan_run.h"

namespace lockstep::models {
namespace {

Task Gpt2(DType dtype) {
  Task task;
  task.model = SmallGpt(/*dropout=*/0.1);
  task.model.n_head = 4;
  task.model.n_embd = 32;
  task.model.loss_chunk = 3;  // of the 2 or 4 rows of a chunk of a micro-batch
  task.dtype = dtype;
  task.optim.clip = 0.05;
  task.virtual_cp = 2;
  return task;
}

Task Llama(DType dtype) {
  Task task = LlamaLike(Gpt2(dtype));
  GptConfig& m = task.model;
  m.tie_embeddings = false;
  m.n_head = 8;
  m.n_kv_head = 4;
  m.n_embd = 64;
  m.n_inner = 48;
  m.loss_chunk = 0;
  task.virtual_cp = 4;  // chunks of a token
  return task;
}

Task Qwen3(DType dtype) {
  Task task = Llama(dtype);
  task.model.head_dim = 12;  // more than n_embd / n_head
  task.model.qk_norm = nn::QkNorm::kHead;
  return task;
}

// With all that routers have: losses, a shared expert and its gate.
Task Mixture(DType dtype) {
  Task task = Gpt2(dtype);
  task.model.mixture = {.n_expert = 4, .n_expert_used = 2, .n_inner = 20};
  task.model.mixture.n_shared = 12;
  task.model.mixture.shared_gate = true;
  task.model.mixture.balance_loss = 0.5;
  task.model.mixture.z_loss = 0.1;
  return task;
}

// With biases that move by the loads, and chunks of a token.
Task SigmoidMixture(DType dtype) {
  Task task = Llama(dtype);
  task.model.n_dense = 1;
  task.model.mixture = {.n_expert = 5, .n_expert_used = 2, .n_inner = 20};
  task.model.mixture.router.score = RouterScore::kSigmoid;
  task.model.mixture.bias_rate = 0.01;
  return task;
}

Plan PlanOf(int64_t cp, int64_t dp) { return {.copies = dp, .cp = cp, .data_parallel = true}; }

void ExpectSameBits(const Task& task) {
  std::vector<Plan> plans;
  for (const auto& [cp, dp] : {std::pair<int64_t, int64_t>{2, 1}, {4, 1}, {1, 2}, {2, 2}, {4, 2}}) {
    if (cp <= task.virtual_cp) plans.push_back(PlanOf(cp, dp));
  }
  ExpectSameBits(task, plans);
}

TEST(ContextParallelPlan, Gpt2InF32) { ExpectSameBits(Gpt2(DType::kF32)); }

TEST(ContextParallelPlan, Gpt2InBF16) { ExpectSameBits(Gpt2(DType::kBF16)); }

TEST(ContextParallelPlan, LlamaInF32) { ExpectSameBits(Llama(DType::kF32)); }

TEST(ContextParallelPlan, LlamaInBF16) { ExpectSameBits(Llama(DType::kBF16)); }

TEST(ContextParallelPlan, Gemma) {
  ExpectSameBits(GemmaLike(Llama(DType::kF32)));
  Task biases = GemmaLike(Llama(DType::kBF16));
  biases.model.bias = true;  // of branches that end in a norm
  ExpectSameBits(biases);
}

TEST(ContextParallelPlan, OlmosNorms) { ExpectSameBits(OlmoLike(Llama(DType::kBF16))); }

TEST(ContextParallelPlan, Modern) {
  ExpectSameBits(ModernLike(Gpt2(DType::kBF16)));
  ExpectSameBits(ModernLike(Llama(DType::kF32)));
}

TEST(ContextParallelPlan, Qwen3) {
  ExpectSameBits(Qwen3(DType::kF32));
  ExpectSameBits(Qwen3(DType::kBF16));
}

// The share of tokens that an expert gets is the sequence's, however it is cut. (Equal bits would
// not show it: one process cuts in the same places.)
TEST(ContextParallelPlan, AMixturesBalanceLossIsOfWholeSequences) {
  Task task = Mixture(DType::kF32);
  task.model.mixture.balance_loss = 5;
  const Outcome chunks = TrainAlone(task);
  task.virtual_cp = 1;
  const Outcome whole = TrainAlone(task);
  ASSERT_EQ(chunks.norms.size(), whole.norms.size());
  for (size_t i = 0; i < whole.norms.size(); ++i) {
    EXPECT_NEAR(chunks.norms[i], whole.norms[i], 1e-5 * whole.norms[i]) << "step " << i;
  }
}

TEST(ContextParallelPlan, MixturesInF32) {
  ExpectSameBits(Mixture(DType::kF32));
  ExpectSameBits(SigmoidMixture(DType::kF32));
}

TEST(ContextParallelPlan, MixturesInBF16) {
  ExpectSameBits(Mixture(DType::kBF16));
  ExpectSameBits(SigmoidMixture(DType::kBF16));
}

// Whose weights units of FullyShard show, and whose stages have micro-batches under way.
TEST(ContextParallelPlan, MixturesWithOtherModes) {
  Task task = Mixture(DType::kF32);
  task.model.tie_embeddings = false;
  const Outcome alone = TrainAlone(task);
  Plan sharded{.shards = 2, .cp = 2};
  sharded.options.sum = dist::GradientSum::kOrdered;
  Plan both = sharded, stages = PlanOf(2, 2), recomputed = sharded;
  both.pp = stages.pp = 2;
  stages.schedule = dist::PipelineKind::kZeroBubbleV;
  recomputed.recompute = ParseRecompute("block");
  for (const Plan& plan : {sharded, both, stages, recomputed}) {
    EXPECT_EQ(Difference(TrainBy(task, plan, task.steps), alone), "") << task << "; " << plan;
  }
}

// Chunks of a token, whose rows begin anywhere in memory.
TEST(ContextParallelPlan, OddWidths) {
  Task task = Gpt2(DType::kF32);
  task.model.n_head = 3;
  task.model.n_embd = 33;
  task.virtual_cp = 4;
  const Outcome alone = TrainBy(task, PlanOf(1, 1), 3);
  EXPECT_EQ(Difference(TrainBy(task, PlanOf(4, 1), 3), alone), "");
}

TEST(ContextParallelPlan, RecomputesAndResumesWithOtherRanks) {
  for (Task task :
       {Gpt2(DType::kF32), Llama(DType::kBF16), Qwen3(DType::kBF16), Mixture(DType::kBF16)}) {
    const Outcome alone = TrainAlone(task);
    Plan first = PlanOf(task.virtual_cp, 1), second = PlanOf(2, 2);
    first.recompute = ParseRecompute("block");
    second.recompute = ParseRecompute("attention");
    const Outcome half = TrainBy(task, first, 2);
    EXPECT_EQ(Difference(TrainBy(task, second, task.steps - 2, &half), alone), "") << task;
    const Outcome again = TrainBy(task, second, 2);
    EXPECT_EQ(Difference(TrainBy(task, PlanOf(1, 1), task.steps - 2, &again), alone), "") << task;
  }
}

TEST(ContextParallelPlan, SameBitsOnSimulatedGpus) {
  SKIP_WITHOUT_GPUS(2);
  for (Task task : {Gpt2(DType::kBF16), Qwen3(DType::kF32), Mixture(DType::kBF16)}) {
    task.model.n_layer = 1;
    task.steps = 2;
    task.micro_batches = 2;
    task.virtual_cp = 2;
    const Outcome alone = TrainBy(task, PlanOf(1, 1), task.steps, nullptr, /*on_gpu=*/true);
    const Outcome shared = TrainBy(task, PlanOf(2, 1), task.steps, nullptr, /*on_gpu=*/true);
    EXPECT_EQ(Difference(shared, alone), "") << task;
  }
}

// ---- Against a model that knows nothing of parts of a sequence. ----

constexpr double kRoot = 0.125;

struct Gradients {
  double loss = 0;
  std::map<std::string, std::vector<double>> of;
};

// Of one batch, dropout included, with every third target left out.
Gradients Backpropagate(Gpt& model) {
  std::vector<int32_t> ids, targets;
  for (int32_t i = 0; i < 3 * kWindow; ++i) {
    ids.push_back(i * i % 13);
    targets.push_back(i % 3 == 0 ? -1 : (7 * i + 5) % 13);
  }
  StepState state(kCpu, 17);
  state.Begin(2, 0.1);
  state.SetFirstSample(5);
  const TrainingScope scope(state);
  const Tensor loss = model.Loss(Tensor::FromVector<int32_t>(ids, {3, kWindow}),
                                 Tensor::FromVector<int32_t>(targets, {3, kWindow}));
  Backward(loss, Tensor::Full({}, kRoot, loss.dtype()));
  Gradients gradients{.loss = loss.Item()};
  for (const auto& [name, p] : model.NamedParameters()) {
    gradients.of[name] = p->WholeOf(p->grad()).To(DType::kF64).ToVector<double>();
  }
  return gradients;
}

std::unique_ptr<Gpt> MakeGpt(const Task& task, const dist::ContextRanksPtr& ranks) {
  auto model = std::make_unique<Gpt>(task.model);
  if (ranks && ranks->within()) ParallelizeLayers(*model, ranks->within());
  if (ranks) dist::ParallelizeContext(*model, ranks);
  nn::Materialize(*model, kCpu, 4, {.compute = task.dtype});
  return model;
}

void ExpectNear(const Gradients& got, const Gradients& want, double tolerance) {
  EXPECT_NEAR(got.loss, want.loss, tolerance * want.loss);
  ASSERT_EQ(got.of.size(), want.of.size());
  for (const auto& [name, values] : want.of) {
    double largest = 0, error = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      largest = std::max(largest, std::abs(values[i]));
      error = std::max(error, std::abs(values[i] - got.of.at(name)[i]));
    }
    EXPECT_GT(largest, 0) << name;
    EXPECT_LE(error, tolerance * largest) << name;
  }
}

TEST(ContextParallelPlan, HasTheGradientsOfWholeSequences) {
  for (const Task& task : {Gpt2(DType::kF64), Llama(DType::kF64), Qwen3(DType::kF64),
                           Mixture(DType::kF64), SigmoidMixture(DType::kF64)}) {
    const Gradients whole = Backpropagate(*MakeGpt(task, nullptr));
    for (const int ranks : {1, 2}) {
      dist::RunInProcess(ranks, [&](dist::ProcessGroup& all) {
        const auto context = std::make_shared<dist::ContextRanks>(&all, task.virtual_cp);
        ExpectNear(Backpropagate(*MakeGpt(task, context)), whole, 1e-12);
      });
    }
  }
}

// Also where other ranks have parts of the layers of each chunk.
TEST(ContextParallelPlan, HasTheGradientsOfWholeLayers) {
  for (Task task :
       {Gpt2(DType::kF64), Llama(DType::kF64), Qwen3(DType::kF64), Mixture(DType::kF64)}) {
    task.model.vocab_size = 14;
    if (task.model.n_kv_head > 0) task.model.n_kv_head = 1;  // of which ranks have copies
    task.virtual_cp = 2;
    const Gradients whole = Backpropagate(*MakeGpt(task, nullptr));
    for (const auto& [tp, cp] : {std::pair(1, 1), {2, 1}, {1, 2}, {2, 2}}) {
      dist::RunInProcess(tp * cp, [&](dist::ProcessGroup& all) {
        const dist::Mesh mesh({.cp = cp, .tp = tp}, all.rank(), all.size());
        const auto layers = all.Split(mesh.GroupName({"tp"}), mesh.RanksAlong({"tp"})),
                   parts = all.Split(mesh.GroupName({"cp"}), mesh.RanksAlong({"cp"}));
        const auto context = std::make_shared<dist::ContextRanks>(
            parts.get(), task.virtual_cp, /*leaves_gradients_to_reducer=*/false,
            std::make_shared<dist::TensorRanks>(layers.get(), 2));
        ExpectNear(Backpropagate(*MakeGpt(task, context)), whole, 1e-12);
      });
    }
  }
}

// Tensor-parallel ranks have different parts of a matrix, and context-parallel ones the same.
TEST(ContextParallelPlan, ComparesThePartsOfLayersThatRanksHaveAlike) {
  Task task = Gpt2(DType::kF32);
  task.model.vocab_size = 14;
  std::vector<std::string> errors(4);
  dist::RunInProcess(4, [&](dist::ProcessGroup& all) {
    const dist::Mesh mesh({.cp = 2, .tp = 2}, all.rank(), all.size());
    const auto layers = all.Split(mesh.GroupName({"tp"}), mesh.RanksAlong({"tp"})),
               parts = all.Split(mesh.GroupName({"cp"}), mesh.RanksAlong({"cp"}));
    const auto tensor = std::make_shared<dist::TensorRanks>(layers.get(), 2);
    const auto context = std::make_shared<dist::ContextRanks>(parts.get(), 2, false, tensor);
    const auto model = MakeGpt(task, context);
    dist::CheckReplicas(*tensor, *model, "at first");
    dist::CheckReplicas(*context, *model, "at first");
    for (const auto& [name, p] : model->NamedParameters()) {
      if (all.rank() != 3 || name != "h.1.attn.c_attn.weight") continue;
      Tensor value = p->value().Detach();
      value.Fill(0);
    }
    try {
      dist::CheckReplicas(*context, *model, "later");
    } catch (const dist::ReplicaError& e) {
      errors[static_cast<size_t>(all.rank())] = e.what();
    }
  });
  for (const size_t rank : {0, 2}) EXPECT_EQ(errors[rank], "");
  for (const size_t rank : {1, 3}) {
    EXPECT_THAT(errors[rank], testing::HasSubstr("h.1.attn.c_attn.weight"));
  }
}

// Experts are split across runs of neighbouring ranks of a sequence: each run has copies of them.
// Routers' biases, which no gradient moves, are the same on all.
TEST(ContextParallelPlan, ComparesCopiesOfExpertsAndBiases) {
  Task task = SigmoidMixture(DType::kF32);
  task.model.mixture.n_expert = 4;
  std::vector<std::string> of_experts(4), of_biases(4);
  dist::RunInProcess(4, [&](dist::ProcessGroup& all) {
    const dist::Mesh mesh({.cp = 4, .ep = 2}, all.rank(), all.size());
    const auto experts = all.Split(mesh.GroupName({"ep"}), mesh.RanksAlong({"ep"}));
    const auto context = std::make_shared<dist::ContextRanks>(&all, 4);
    Gpt model(task.model);
    dist::ShareExperts(model, experts, experts);
    dist::ParallelizeContext(model, context);
    model.Materialize(kCpu, 3);
    const auto spoil = [&](const Tensor& t) {
      const Tensor kept = t.Clone();
      t.Detach().Fill(7);
      return kept;
    };
    const auto message = [&] {
      return test::MessageOf<dist::ReplicaError>(
          [&] { dist::CheckReplicas(*context, model, "later"); });
    };
    dist::CheckReplicas(*context, model, "at first");
    for (const auto& [name, p] : model.NamedParameters()) {
      if (name != "h.1.mlp.experts.c_proj.weight") continue;
      const Tensor value = p->value().Detach();
      const Tensor kept = all.rank() == 3 ? spoil(value) : value.Clone();
      of_experts[static_cast<size_t>(all.rank())] = message();
      value.Detach().CopyFrom(kept);
    }
    for (const auto& [name, buffer] : model.NamedBuffers()) {
      if (name == "h.1.mlp.router.bias" && all.rank() == 2) spoil(buffer);
    }
    of_biases[static_cast<size_t>(all.rank())] = message();
  });
  EXPECT_THAT(of_experts, testing::Each(testing::HasSubstr(
                              "'h.1.mlp.experts.c_proj.weight' of rank 3 differs from that of "
                              "rank 1")));
  EXPECT_THAT(of_biases, testing::Each(testing::HasSubstr("'h.1.mlp.router.bias' of rank 2")));
}

// In the library's order: those of each rank's chunks, which whoever sums gradients adds up.
TEST(ContextParallelPlan, RanksApartHaveTheirPartsOfTheGradients) {
  for (Task task :
       {Gpt2(DType::kF64), Llama(DType::kF64), Qwen3(DType::kF64), Mixture(DType::kF64)}) {
    const Gradients whole = Backpropagate(*MakeGpt(task, nullptr));
    dist::RunInProcess(4, [&](dist::ProcessGroup& all) {
      const dist::Mesh mesh({.cp = 2}, all.rank(), all.size());
      const auto cp = all.Split(mesh.GroupName({"cp"}), mesh.RanksAlong({"cp"}));
      const auto model = MakeGpt(task, std::make_shared<dist::ContextRanks>(cp.get(), 2, true));
      dist::SharedSamples parallel(&all, 2, *model, {});
      EXPECT_EQ(parallel.micro_batches(), 2);
      EXPECT_EQ(parallel.micro_order(), std::vector<int64_t>{all.rank() / 2});
      parallel.BeginMicroBatch(/*last=*/true);
      Gradients sum = Backpropagate(*model);  // each micro-batch is the same
      sum.loss = parallel.Sum(sum.loss);
      Gradients twice = whole;
      twice.loss *= 2;
      for (auto& [name, values] : twice.of) {
        for (double& value : values) value *= 2;
      }
      ExpectNear(sum, twice, 1e-12);
    });
  }
}

// Large sums go another way, by shards, to the same bits.
TEST(ContextParallelPlan, SumsOfLargeTensorsAreThoseOfTheirParts) {
  dist::RunInProcess(3, [](dist::ProcessGroup& all) {
    const dist::TensorRanks ranks(&all, 3);
    std::vector<float> values(40'001);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = std::sin(static_cast<float>(i * 7 + static_cast<size_t>(all.rank()) * 13));
    }
    const Tensor x = Tensor::FromVector<float>(values, {40'001});
    const std::vector<float> sum = ranks.Sum(x, DType::kF32).ToVector<float>();
    for (const int64_t begin : {0, 20'000, 39'000}) {
      const std::vector<float> part =
          ranks.Sum(x.Slice(0, begin, begin + 1'001), DType::kF32).ToVector<float>();
      for (size_t i = 0; i < part.size(); ++i) {
        ASSERT_EQ(sum[static_cast<size_t>(begin) + i], part[i]) << begin << " + " << i;
      }
    }
  });
}

class Scale : public Layer {
 public:
  Scale() : scale_(AddParameter("scale", {1}, nullptr, /*decay=*/false)) {}

 protected:
  Tensor Forward(const Tensor& x) override { return x; }

 private:
  const std::shared_ptr<Parameter> scale_;
};

TEST(ContextParallelPlan, SaysWhatDoesNotDivide) {
  const auto error = [](const auto& f) -> std::string {
    try {
      f();
    } catch (const ArgumentError& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_THAT(error([] {
                const Task task = Gpt2(DType::kF32);
                Backpropagate(*MakeGpt(task, std::make_shared<dist::ContextRanks>(nullptr, 3)));
              }),
              testing::HasSubstr("use a block_size that is a multiple of 6"));
  EXPECT_THAT(error([&] {
                Scale model;
                dist::ParallelizeContext(model, std::make_shared<dist::ContextRanks>(nullptr, 2));
              }),
              testing::HasSubstr("belongs to a module whose gradients it cannot sum"));
  // What is within a mixture would be gathered after the mixture has read it.
  const auto chunked =
      MakeGpt(Mixture(DType::kF32), std::make_shared<dist::ContextRanks>(nullptr, 2));
  dist::ShardOptions inner;
  inner.unit = [](const Module& m) { return dynamic_cast<const nn::Experts*>(&m) != nullptr; };
  EXPECT_THAT(error([&] { dist::FullyShard(nullptr, *chunked, inner); }),
              testing::AllOf(testing::HasSubstr("' is within a mixture"),
                             testing::HasSubstr("pick the whole mixture")));
  dist::RunInProcess(2, [&](dist::ProcessGroup& all) {
    Gpt model(Mixture(DType::kF32).model);
    const auto experts = all.Duplicate("experts");
    dist::ShareExperts(model, experts, experts);
    const auto apart =
        std::make_shared<dist::ContextRanks>(&all, 2, /*leaves_gradients_to_reducer=*/true);
    EXPECT_THAT(error([&] { dist::ParallelizeContext(model, apart); }),
                testing::HasSubstr("use ContextRanks that sum them"));
    // Ranks of a sequence that have other experts must not be taken for copies.
    Gpt untold(Mixture(DType::kF32).model);
    dist::ShareExperts(untold, experts);
    const auto together = std::make_shared<dist::ContextRanks>(&all, 2);
    EXPECT_THAT(error([&] { dist::ParallelizeContext(untold, together); }),
                testing::HasSubstr("2 compute this rank's sequences together, and ShareExperts was "
                                   "told of 1"));
    Gpt late(Mixture(DType::kF32).model);
    dist::ParallelizeContext(late, together);
    EXPECT_THAT(error([&] { dist::ShareExperts(late, experts, experts); }),
                testing::HasSubstr("call ShareExperts before ParallelizeContext"));
    EXPECT_THAT(error([&] { dist::ContextRanks(&all, 6); }), testing::HasSubstr("use 4"));
    EXPECT_THAT(error([&] { dist::ContextRanks(&all, 4, /*leaves_gradients_to_reducer=*/true); }),
                testing::HasSubstr("2 ranks have 2 pairs"));
  });
}

}  // namespace
}  // namespace lockstep::models
