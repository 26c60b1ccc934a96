// Memory plans of pipelines: of which rank they are, and what it keeps of how many micro-batches.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "dist/groups/planned_group.h"
#include "dist/pipeline/schedule.h"
#include "models/memory/auto_recompute.h"
#include "models/memory/gpu_plan.h"
#include "models/train/parallelize.h"
#include "models/train/pipeline_parallel.h"
#include "models/train/run_setup.h"
#include "tests/models/memory/memory_case.h"
#include "tests/models/parsed_run.h"

namespace lockstep::models {
namespace {

using enum dist::PipelineKind;
using testing::HasSubstr;

constexpr int kRanks = 4;

// Eight layers, and an embedding and a head that are hardly worth mentioning.
const MemoryCase kCase{"", 4, 64, 1, 1, Shape(65, 64, 8, 4, 64)};

// Of one rank.
MemoryPlan PlanOf(dist::PipelineKind kind, int rank, int64_t micro_batches,
                  const GptConfig& config = kCase.model) {
  const auto group = dist::MakePlannedGroup(kRanks, rank);
  const MeshGroups groups{.pipeline = group};
  const ParallelPlan plan{.micro_batches = micro_batches,
                          .pipeline = PipelinePlan{.kind = kind, .window = kCase.window},
                          .reducer = dist::ReducerOptions{}};
  std::shared_ptr<Gpt> gpt;
  return PlanMemory(
      {.model = [&] { return gpt = std::make_shared<Gpt>(config); },
       .ranks =
           [&](LanguageModel&) {
             return Parallelize(*gpt, groups, plan,
                                [&](bool) { gpt->Materialize(kMeta, 4, DType::kF32); });
           },
       .optimizer =
           [](LanguageModel& model) { return std::make_unique<optim::AdamW>(model.Parameters()); },
       .batch_size = kCase.batch_size,
       .window = kCase.window});
}

// Narayanan et al. 2021 and Qi et al. 2023: how many micro-batches each rank keeps, in units of
// what all of its stages keep of one.
TEST(PipelineMemory, ActivationsAreThoseOfMicroBatchesInFlight) {
  for (const dist::PipelineKind kind : {k1F1B, kInterleaved, kZeroBubbleH1, kZeroBubbleV}) {
    const dist::PipelineSchedule schedule = dist::MakeSchedule(kind, kRanks, /*micro_batches=*/8);
    const int chunks = schedule.stages() / kRanks;
    for (int rank = 0; rank < kRanks; ++rank) {
      const auto activations = [&](int64_t micro_batches) {
        return static_cast<double>(PlanOf(kind, rank, micro_batches).largest.activations);
      };
      const double in_flight = static_cast<double>(schedule.in_flight[rank]) / chunks;
      // Less where stages differ; more for a few tensors that pass between stages, and where weight
      // gradients that come later need gradients of outputs, too.
      const bool later = kind == kZeroBubbleH1 || kind == kZeroBubbleV;
      EXPECT_LT(activations(8), (later ? 1.5 : 1.15) * in_flight * activations(1))
          << Name(kind) << " " << rank;
      EXPECT_GT(activations(8), 0.7 * in_flight * activations(1)) << Name(kind) << " " << rank;
    }
  }
}

// Each rank has the weights, gradients and state of its stages.
TEST(PipelineMemory, RanksHaveTheirStages) {
  const int64_t whole = 4 * (Gpt(kCase.model).NumParameters() + 65 * 64);  // the tied ones twice
  for (const dist::PipelineKind kind : {k1F1B, kZeroBubbleV}) {
    int64_t parameters = 0, gradients = 0, optimizer = 0;
    for (int rank = 0; rank < kRanks; ++rank) {
      const MemoryPlan plan = PlanOf(kind, rank, 8);
      EXPECT_LT(plan.largest.parameters, 0.3 * static_cast<double>(whole));
      parameters += plan.largest.parameters;
      gradients += plan.largest.gradients;
      optimizer += plan.largest.optimizer;
    }
    const int64_t once = kind == k1F1B ? 0 : 4 * 65 * 64;  // on one rank
    EXPECT_EQ(parameters, whole - once);
    EXPECT_EQ(optimizer, 2 * parameters);
    EXPECT_NEAR(static_cast<double>(gradients), static_cast<double>(whole), 0.01 * whole);
  }
}

RunSetup SetupOf(std::vector<std::string> arguments, int ranks, Device device = kCpu) {
  for (const char* shape : {"--model.n_layer=8", "--model.n_head=4", "--model.n_embd=64",
                            "--model.block_size=64", "--train.batch_size=4"}) {
    arguments.emplace_back(shape);
  }
  const ParsedRun run(arguments);
  return PrepareShape(run.options, run.config, device, ranks);
}

// The first rank has most micro-batches in flight; the last one has the logits.
TEST(PipelineMemory, ThePlanIsOfTheRankThatTakesMost) {
  const MemoryPlan first = PlanMemory(SetupOf({"--parallel.pp=4", "--train.grad_accum=8"}, 4));
  EXPECT_EQ(first.pipeline_rank, 0);
  EXPECT_THAT(Summary(first), HasSubstr("at the peak of a step on rank 0 of the pipeline: "));
  EXPECT_THAT(Table(first, kCpu), HasSubstr("of rank 0 of the pipeline, which takes most"));
  const MemoryPlan last = PlanMemory(
      SetupOf({"--parallel.pp=4", "--train.grad_accum=8", "--model.vocab_size=20000"}, 4));
  EXPECT_EQ(last.pipeline_rank, 3);
  EXPECT_EQ(PlanMemory(SetupOf({"--train.grad_accum=8"}, 1)).pipeline_rank, -1);
}

// Of many micro-batches only some are planned.
TEST(PipelineMemory, RoundsOfAFullPipelineAreAlike) {
  for (const dist::PipelineKind kind : {k1F1B, kInterleaved, kZeroBubbleH1, kZeroBubbleV}) {
    const RunSetup setup = SetupOf(
        {"--parallel.pp=4", "--train.grad_accum=64", StrCat("--parallel.schedule=", Name(kind))},
        kRanks);
    int64_t most = 0;
    for (int rank = 0; rank < kRanks; ++rank) {
      most = std::max(most, PlanOf(kind, rank, 64, setup.model).peak.total());
    }
    // But for the padding of buckets.
    EXPECT_NEAR(static_cast<double>(PlanMemory(setup).peak.total()), static_cast<double>(most),
                0.0005 * static_cast<double>(most))
        << Name(kind);
  }
}

TEST(PipelineMemory, RecomputesAsFewLayersAsFit) {
  RunSetup setup = SetupOf({"--parallel.pp=4", "--train.grad_accum=8"}, 4);
  const auto total = [&](int64_t layers) {
    RunSetup chosen = setup;
    chosen.model.recompute = {.part = RecomputeChoice::Part::kBlock, .layers = layers};
    return PlanMemory(chosen).peak.total();
  };
  const int64_t none = total(0), all = total(8);
  EXPECT_LT(all, none / 2);
  for (const int64_t limit : {none, (none + all) / 2, all}) {
    setup.model.recompute = ParseRecompute("auto");
    const MemoryPlan plan = SettleRecompute(
        setup, [&](const MemoryPlan& tried) { return tried.peak.total() <= limit; });
    EXPECT_LE(plan.peak.total(), limit);
    const int64_t layers = setup.model.recompute.layers;
    if (layers > 0) {
      EXPECT_GT(total(layers - 1), limit);
    }
  }
}

// On a GPU what was sent and received is kept until the end of a step.
TEST(PipelineMemory, GpusKeepWhatPassesBetweenStages) {
  const auto total = [](Device device, int64_t accum) {
    return PlanMemory(SetupOf({"--parallel.pp=4", StrCat("--train.grad_accum=", accum)}, 4, device))
        .peak.total();
  };
  const Device gpu{DeviceType::kCuda, 0};
  const int64_t boundary = 4 * 64 * 64 * 4;  // f32 [4, 64, 64]
  const int64_t more = total(gpu, 32) - total(gpu, 16);
  EXPECT_GE(more, 16 * boundary);
  EXPECT_LT(more, 16 * 5 * boundary);
  EXPECT_LT(total(kCpu, 32) - total(kCpu, 16), boundary);  // tokens
}

TEST(PipelineMemory, IsPlannedForGpusThatAreNotHere) {
  const auto plan = [](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"--model.preset=llama-3-8b", "--train.precision=bf16",
                                          "--train.grad_accum=8"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ParsedRun run(arguments);
    return PlanOnGpus(run.options, run.config, ParseDeviceSet("gpus", "8x80"));
  };
  const GpuPlan pipeline = plan({"--parallel.pp=4", "--train.recompute=block"});
  EXPECT_THAT(pipeline.text, HasSubstr("pipelines of 4 ranks by 1f1b"));
  EXPECT_THAT(pipeline.text, HasSubstr("of rank "));
  // 18 bytes of a parameter and its gradient in f32, of which a rank has about a quarter.
  const double n = 8030261248;
  EXPECT_GT(static_cast<double>(pipeline.memory.peak.total()), 0.2 * 18 * n);
  EXPECT_LT(static_cast<double>(pipeline.memory.peak.total()), 0.4 * 18 * n);
  EXPECT_TRUE(pipeline.fits) << pipeline.text;
  const GpuPlan automatic = plan({"--parallel.pp=4", "--train.recompute=auto"});
  EXPECT_TRUE(automatic.fits) << automatic.text;
  // Without room enough it says what would help.
  const GpuPlan large = plan({"--parallel.pp=2"});
  EXPECT_FALSE(large.fits) << large.text;
  EXPECT_THAT(large.text, HasSubstr("What would fit: "));
}

}  // namespace
}  // namespace lockstep::models
