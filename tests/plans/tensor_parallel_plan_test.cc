// With a given virtual.tp, a run has the same bits on any number of tensor-parallel ranks that
// divides it, times any number of data-parallel ones.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "core/cuda/device.h"
#include "models/train/parallelize.h"
#include "tests/dist/gpu_ranks.h"
#include "tests/dist/in_process.h"
#include "tests/models/training.h"
#include "tests/plans/plan_run.h"

namespace lockstep::models {
namespace {

Task Gpt2(DType dtype) {
  Task task;
  task.model = SmallGpt(/*dropout=*/0.1);
  task.model.vocab_size = 32;
  task.model.n_head = 4;
  task.model.n_embd = 32;
  task.model.loss_chunk = 12;  // of the 16 rows of a micro-batch
  task.dtype = dtype;
  task.optim.clip = 0.05;
  task.virtual_tp = 4;
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
  return task;
}

Task Qwen3(DType dtype) {
  Task task = Llama(dtype);
  task.model.head_dim = 12;  // more than n_embd / n_head
  task.model.qk_norm = nn::QkNorm::kHead;
  return task;
}

Task Mixture(DType dtype, RouterScore score) {
  Task task = score == RouterScore::kSoftmax ? Gpt2(dtype) : Llama(dtype);
  nn::MixtureOptions& mixture = task.model.mixture;
  mixture = {.n_expert = 8, .n_expert_used = 2, .n_inner = 20};
  mixture.z_loss = 0.5;
  mixture.router.score = score;
  if (score == RouterScore::kSigmoid) {
    task.model.n_dense = 1;
    mixture.bias_rate = 0.01;
  } else {
    mixture.balance_loss = 0.5;
    mixture.n_shared = 12;
    mixture.shared_gate = true;
  }
  return task;
}

Plan PlanOf(int64_t tp, int64_t dp) { return {.copies = dp, .tp = tp, .data_parallel = true}; }

void ExpectSameBits(const Task& task) {
  std::vector<Plan> plans;
  for (const auto& [tp, dp] : {std::pair<int64_t, int64_t>{2, 1}, {4, 1}, {1, 2}, {2, 2}, {4, 2}}) {
    plans.push_back(PlanOf(tp, dp));
  }
  ExpectSameBits(task, plans);
}

TEST(TensorParallelPlan, Gpt2InF32) { ExpectSameBits(Gpt2(DType::kF32)); }

TEST(TensorParallelPlan, Gpt2InBF16) { ExpectSameBits(Gpt2(DType::kBF16)); }

TEST(TensorParallelPlan, LlamaInF32) { ExpectSameBits(Llama(DType::kF32)); }

TEST(TensorParallelPlan, LlamaInBF16) { ExpectSameBits(Llama(DType::kBF16)); }

TEST(TensorParallelPlan, Gemma) {
  ExpectSameBits(GemmaLike(Llama(DType::kF32)));
  Task biases = GemmaLike(Llama(DType::kBF16));
  biases.model.bias = true;  // of branches that end in a norm
  ExpectSameBits(biases);
}

// Whose norms of queries and keys are sums over all ranks.
TEST(TensorParallelPlan, Olmo) {
  ExpectSameBits(OlmoLike(Llama(DType::kF32)));
  ExpectSameBits(OlmoLike(Llama(DType::kBF16)));
  Task plain = OlmoLike(Llama(DType::kF32));
  plain.model.norm_weight = false;
  ExpectSameBits(plain);
}

TEST(TensorParallelPlan, Modern) {
  ExpectSameBits(ModernLike(Gpt2(DType::kBF16)));
  ExpectSameBits(ModernLike(Llama(DType::kF32)));
}

TEST(TensorParallelPlan, Qwen3) {
  ExpectSameBits(Qwen3(DType::kF32));
  ExpectSameBits(Qwen3(DType::kBF16));
}

// Ranks have parts of key heads, and copies of the whole ones.
TEST(TensorParallelPlan, FewerKeyHeadsThanRanks) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t keys : {1, 2}) {
      Task task = Llama(dtype);
      task.model.n_kv_head = keys;
      task.model.bias = dtype == DType::kBF16;
      ExpectSameBits(task);
    }
  }
  Task task = Llama(DType::kF32);
  task.model.n_kv_head = 2;
  task.virtual_tp = 8;
  ExpectSameBits(task);
  task = Qwen3(DType::kF32);
  task.model.n_kv_head = 2;
  ExpectSameBits(task);
}

TEST(TensorParallelPlan, Mixtures) {
  ExpectSameBits(Mixture(DType::kF32, RouterScore::kSoftmax));
  ExpectSameBits(Mixture(DType::kBF16, RouterScore::kSigmoid));
}

TEST(TensorParallelPlan, RecomputesAndResumesWithOtherRanks) {
  for (Task task : {Gpt2(DType::kF32), Llama(DType::kF32), Qwen3(DType::kF32),
                    Mixture(DType::kF32, RouterScore::kSigmoid)}) {
    task.optim.name = "muon";  // which wants whole matrices
    const Outcome alone = TrainAlone(task);
    Plan first = PlanOf(4, 1), second = PlanOf(2, 2);
    first.recompute = ParseRecompute("block");
    second.recompute = ParseRecompute("attention");
    const Outcome half = TrainBy(task, first, 2);
    EXPECT_EQ(Difference(TrainBy(task, second, task.steps - 2, &half), alone), "") << task;
    const Outcome again = TrainBy(task, second, 2);
    EXPECT_EQ(Difference(TrainBy(task, PlanOf(1, 1), task.steps - 2, &again), alone), "") << task;
  }
}

TEST(TensorParallelPlan, RanksHoldTheirExpertsOnly) {
  const Task task = Mixture(DType::kF32, RouterScore::kSoftmax);
  dist::RunInProcess(4, [&](dist::ProcessGroup& all) {
    PlanRun run(all, task, PlanOf(4, 1));
    int64_t elements = 0;
    for (const auto& [name, p] : run.model().NamedParameters()) {
      if (name.find(".experts.") != std::string::npos) elements += p->value().numel();
    }
    EXPECT_EQ(elements, 2 * 2 * (8 / 4) * 32 * 20);
  });
}

// Parts differ in the last bits from one product, and only there.
TEST(TensorParallelPlan, ComputesWhatOneProcessComputes) {
  Task fewer_keys = Llama(DType::kF32);
  fewer_keys.model.n_kv_head = 2;
  for (Task task : {Gpt2(DType::kF32), fewer_keys, GemmaLike(Llama(DType::kF32)),
                    OlmoLike(Llama(DType::kF32))}) {
    task.steps = 3;
    const Outcome parts = TrainBy(task, PlanOf(4, 1), task.steps);
    task.virtual_tp = 1;
    const Outcome whole = TrainAlone(task);
    for (size_t i = 0; i < whole.losses.size(); ++i) {
      EXPECT_NEAR(parts.losses[i], whole.losses[i], 2e-6 * whole.losses[i]) << task << i;
      EXPECT_NEAR(parts.norms[i], whole.norms[i], 2e-5 * whole.norms[i]) << task << i;
    }
  }
}

TEST(TensorParallelPlan, SameBitsOnSimulatedGpus) {
  SKIP_WITHOUT_GPUS(2);
  for (Task task :
       {Gpt2(DType::kBF16), Qwen3(DType::kF32), Mixture(DType::kF32, RouterScore::kSoftmax)}) {
    task.model.n_layer = 1;
    task.steps = 2;
    task.micro_batches = 2;
    const Outcome alone = TrainBy(task, PlanOf(1, 1), task.steps, nullptr, /*on_gpu=*/true);
    const Outcome shared = TrainBy(task, PlanOf(2, 1), task.steps, nullptr, /*on_gpu=*/true);
    EXPECT_EQ(Difference(shared, alone), "") << task;
  }
}

// As sample_gpt --nproc.
TEST(TensorParallelPlan, RanksThatSampleHoldTheirPartsOnly) {
  for (const int64_t vocabulary : {32, 33}) {
    GptConfig config = Gpt2(DType::kF32).model;
    config.vocab_size = vocabulary;
    dist::RunInProcess(4, [&](dist::ProcessGroup& all) {
      Gpt model(config);
      ParallelizeLayers(model, std::make_shared<dist::TensorRanks>(&all, all.size()));
      model.Materialize(kCpu, 1);
      int64_t own = 0;
      for (const auto& p : model.Parameters()) {
        const int64_t numel = p->value().numel();
        own += numel;
        const bool matrix = p->value().ndim() == 2 && p->name() != "wpe.weight";
        if (matrix && p->logical_shape()[0] % 4 == 0) {
          EXPECT_EQ(4 * numel, p->logical_shape().numel()) << p->name();
        }
      }
      EXPECT_LT(own, model.NumParameters() / 2);
    });
  }
}

TEST(TensorParallelPlan, SaysWhatDoesNotDivide) {
  const auto error = [](const Task& task, int64_t parts) -> std::string {
    Gpt model(task.model);
    try {
      ParallelizeLayers(model, std::make_shared<dist::TensorRanks>(nullptr, parts));
    } catch (const InputError& e) {
      return e.what();
    }
    return "";
  };
  Task task = Gpt2(DType::kF32);
  task.model.vocab_size = 33;
  EXPECT_EQ(error(task, 4), "");
  task.model.vocab_size = 5;
  EXPECT_THAT(error(task, 4), testing::HasSubstr("the 5 rows of 'weight' are too few for the 4 "
                                                 "parts of virtual.tp: with 2 rows each"));
  Task qwen3 = Qwen3(DType::kF32);
  qwen3.model.n_head = 12;
  qwen3.model.n_kv_head = 6;
  EXPECT_EQ(error(qwen3, 2), "");
  Task olmo = OlmoLike(Llama(DType::kF32));
  olmo.model.n_kv_head = 2;
  EXPECT_EQ(error(olmo, 2), "");
  EXPECT_THAT(error(olmo, 4),
              testing::HasSubstr("'h.0.attn.k_norm' norms all heads together (model.qk_norm = "
                                 "\"full\"), and the 4 parts of virtual.tp do not divide the 2"));
  EXPECT_THAT(error(qwen3, 4),
              testing::HasSubstr("the gradient of 'h.0.attn.q_norm' is a sum over the 4 parts of "
                                 "virtual.tp, and these do not divide the 6 heads of keys"));
  dist::RunInProcess(4, [](dist::ProcessGroup& all) {
    Task llama = Llama(DType::kF32);
    llama.model.n_head = 12;
    llama.model.n_embd = 96;
    llama.model.n_kv_head = 6;
    Gpt model(llama.model);
    try {
      ParallelizeLayers(model, std::make_shared<dist::TensorRanks>(&all, 4));
      ADD_FAILURE() << "six key heads on four ranks";
    } catch (const InputError& e) {
      EXPECT_THAT(e.what(), testing::HasSubstr("divides n_kv_head or is a multiple of it"));
    }
  });
}

}  // namespace
}  // namespace lockstep::models
