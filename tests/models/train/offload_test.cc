// Training with activations, optimizer state and weights in host memory. The law: not a bit
// changes.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cstring>

#include "core/allocator.h"
#include "core/cuda/graph_space.h"
#include "dist/shard/fully_shard.h"
#include "models/options/option_offload.h"
#include "models/train/run_model.h"
#include "models/train/step/trainer.h"
#include "tests/gpu_test.h"
#include "tests/message_of.h"
#include "tests/models/training.h"

namespace lockstep::models {
namespace {

using test::kGpu;
using test::MessageOf;
using testing::HasSubstr;

constexpr const char* kAll = "activations,optimizer,weights";

struct Task {
  DType dtype = DType::kF32;
  std::string optimizer = "adamw";
  bool graphs = false;
  bool sharded = false;  // by the one rank
};

// A model in training, with dropout, clipping and accumulation.
struct Bench {
  Bench(const Task& task, const std::string& offload) : tokens(Tokens(300)) {
    const OffloadChoice choice = ParseOffload(offload);
    GptConfig config = SmallGpt(0.1);
    config.n_layer = 4;
    config.offload = choice;
    model = std::make_unique<Gpt>(config);
    if (task.sharded) {
      model->Materialize(kMeta, 4, task.dtype);
      sharded.emplace(dist::ShardGroups(nullptr), *model,
                      dist::ShardOptions{.sum = dist::GradientSum::kOrdered, .micro_batches = 2});
      ranks.emplace(*sharded);
    }
    model->Materialize(kGpu, 4, task.dtype);
    for (const auto& p : model->Parameters()) p->leaf().SetDType(DType::kF32);
    OptimOptions options;
    options.name = task.optimizer;
    optimizer = MakeOptimizer(options, *model, choice);
    std::optional<LossScaleOptions> scaling;
    if (task.dtype == DType::kF16) scaling = {.init = 0x1p24, .growth_interval = 3};
    loader = std::make_unique<data::Loader>(tokens, Shuffled(*tokens),
                                            data::BatchLayout{.batch_size = 3, .micro_batches = 2});
    trainer.emplace(*model, *optimizer, SmallSchedule(), *loader,
                    TrainerOptions{.micro_batches = 2,
                                   .clip = 0.5,
                                   .seed = 9,
                                   .cuda_graphs = task.graphs,
                                   .say = [](const std::string& text) { ADD_FAILURE() << text; },
                                   .ranks = ranks ? &*ranks : nullptr,
                                   .loss_scaling = scaling});
  }

  // Losses, weights and state after some steps and an evaluation.
  std::vector<std::byte> After(int steps) {
    std::vector<std::byte> all;
    const auto add = [&](const void* data, int64_t bytes) {
      const auto* begin = static_cast<const std::byte*>(data);
      all.insert(all.end(), begin, begin + bytes);
    };
    const auto add_tensor = [&](const Tensor& x) {
      const Tensor host = x.Detach().To(kCpu).Contiguous();
      add(host.raw_data(), host.bytes());
    };
    for (int i = 0; i < steps; ++i) {
      const double loss = trainer->Step().loss;
      add(&loss, sizeof(loss));
    }
    const double loss = trainer->Evaluate(data::EvalBatches(tokens, kWindow, 3, 2));
    add(&loss, sizeof(loss));
    for (const auto& p : model->Parameters()) add_tensor(p->value());
    optimizer->ForEachState([&](const std::string&, const Parameter& p, const Tensor& part) {
      add_tensor(p.WholeOf(part));
    });
    return all;
  }

  std::shared_ptr<const data::TokenSource> tokens;
  std::unique_ptr<Gpt> model;
  std::optional<dist::FullyShard> sharded;
  std::optional<SampleRanks> ranks;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::unique_ptr<data::Loader> loader;
  std::optional<Trainer> trainer;
};

class OffloadTest : public test::GpuTest {};

TEST_F(OffloadTest, KeepsTheBits) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const auto plain = Bench({dtype}, "none").After(6);
    for (const char* what : {"optimizer", "weights", "optimizer,weights", kAll}) {
      EXPECT_TRUE(Bench({dtype}, what).After(6) == plain) << dtype << ", " << what;
    }
  }
}

TEST_F(OffloadTest, KeepsTheBitsOfAllOptimizers) {
  for (const char* optimizer : {"sgd", "lion", "muon"}) {
    const Task task{.dtype = DType::kBF16, .optimizer = optimizer};
    EXPECT_TRUE(Bench(task, kAll).After(3) == Bench(task, "none").After(3)) << optimizer;
  }
}

// Also in the steps that are captured once and replayed.
TEST_F(OffloadTest, KeepsTheBitsInGraphs) {
  if (!cuda::GraphSpace::Supported(kGpu)) GTEST_SKIP() << "no caching allocator in this build";
  for (const DType dtype : {DType::kF32, DType::kF16}) {
    const auto plain = Bench({dtype}, "none").After(6);
    for (const char* what : {"optimizer", "weights", kAll}) {
      Bench run({.dtype = dtype, .graphs = true}, what);
      EXPECT_TRUE(run.After(6) == plain) << dtype << ", " << what;
      EXPECT_EQ(run.trainer->graph_replays(), 5) << what;
    }
  }
}

// Each rank's parts are in the memory of its host; here there is one rank.
TEST_F(OffloadTest, KeepsTheBitsOfShards) {
  for (const char* optimizer : {"adamw", "muon"}) {
    const Task task{.dtype = DType::kBF16, .optimizer = optimizer, .sharded = true};
    const auto plain = Bench(task, "none").After(4);
    for (const char* what : {"optimizer", "weights", kAll}) {
      EXPECT_TRUE(Bench(task, what).After(4) == plain) << optimizer << ", " << what;
    }
  }
}

// Of weights, gradients, moments and f32 originals, only gradients, and the weights outside of
// blocks, stay on the device.
TEST_F(OffloadTest, FreesTheMemoryBetweenSteps) {
  Allocator& allocator = GetAllocator(kGpu);
  const auto live = [&](const std::string& what) {
    const int64_t before = allocator.stats().live_bytes;
    Bench run({.dtype = DType::kBF16}, what);
    run.trainer->Step();
    run.trainer->Step();
    return allocator.stats().live_bytes - before;
  };
  Bench run({.dtype = DType::kBF16}, "none");
  int64_t numel = 0, in_blocks = 0;
  for (const auto& [name, p] : run.model->NamedParameters()) {
    numel += p->value().numel();
    if (name.starts_with("h.")) in_blocks += p->value().numel();
  }
  const int64_t plain = live("none");
  EXPECT_EQ(plain - live("optimizer"), 3 * 4 * numel);
  EXPECT_EQ(plain - live("weights"), 2 * in_blocks);
  EXPECT_EQ(plain - live(kAll), 3 * 4 * numel + 2 * in_blocks);
}

TEST_F(OffloadTest, KeepsMemoryFlat) {
  for (const bool graphs : {false, true}) {
    if (graphs && !cuda::GraphSpace::Supported(kGpu)) continue;
    Bench run({.graphs = graphs}, kAll);
    for (int i = 0; i < 4; ++i) run.trainer->Step();
    const AllocatorStats before = GetAllocator(kGpu).stats();
    for (int i = 0; i < 30; ++i) run.trainer->Step();
    const AllocatorStats after = GetAllocator(kGpu).stats();
    EXPECT_EQ(after.live_bytes, before.live_bytes);
    EXPECT_EQ(after.reserved_bytes, before.reserved_bytes);
    EXPECT_EQ(after.system_allocations, before.system_allocations);
  }
}

TEST(OffloadOption, IsAList) {
  EXPECT_EQ(ParseOffload("none"), OffloadChoice());
  EXPECT_EQ(ParseOffload("activations"), OffloadChoice{.activations = true});
  EXPECT_EQ(ParseOffload("weights, optimizer"),
            (OffloadChoice{.optimizer = true, .weights = true}));
  for (const char* text : {"", "all", "none,weights", "weights,", "weights,weights", "optimiser"}) {
    EXPECT_THAT(MessageOf<InputError>([&] { ParseOffload(text); }),
                HasSubstr("must be none, or some of activations, optimizer, weights"))
        << text;
  }
  EXPECT_EQ(Describe(ParseOffload(kAll)), "activations, optimizer state, weights of blocks");
}

}  // namespace
}  // namespace lockstep::models
