// Memory plans of runs with sharded weights: of which rank they are, and what ranks copy to write
// checkpoints from.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "dist/collective.h"
#include "dist/groups/planned_group.h"
#include "models/memory/memory_plan.h"
#include "models/train/parallelize.h"
#include "models/train/pipeline_parallel.h"
#include "models/train/run_model.h"
#include "models/train/run_ranks.h"
#include "models/train/run_setup.h"
#include "tests/models/parsed_run.h"

namespace lockstep::models {
namespace {

using Arguments = std::vector<std::string>;

const Arguments kExperts = {"--model.n_expert=4", "--model.n_expert_used=2",
                            "--model.n_expert_inner=256"};

RunSetup SetupOf(Arguments arguments, int ranks, const Arguments& more = {}) {
  for (const char* shape :
       {"--model.n_layer=4", "--model.n_head=4", "--model.n_embd=96", "--model.block_size=64",
        "--model.vocab_size=224", "--model.tie_embeddings=false", "--train.batch_size=4",
        "--train.grad_accum=4"}) {
    arguments.emplace_back(shape);
  }
  arguments.insert(arguments.end(), more.begin(), more.end());
  const ParsedRun run(arguments);
  return PrepareShape(run.options, run.config, kCpu, ranks);
}

// How many elements of the weights a rank of the run has.
int64_t ElementsOf(const RunSetup& setup, int rank, int ranks) {
  const ParallelPlan plan = PlanOf(setup);
  const dist::Mesh mesh = MeshOf(setup.config, rank, ranks);
  const MeshGroups groups = MeshGroups::Of(mesh, [&](const std::vector<std::string>& axes, bool) {
    const std::vector<int> along = mesh.RanksAlong(axes);
    return dist::MakePlannedGroup(static_cast<int>(along.size()), dist::IndexOf(along, rank));
  });
  Gpt model(setup.model);
  const auto parallel =
      Parallelize(model, groups, plan, [&](bool) { MaterializeFor(setup, kMeta, model); });
  int64_t elements = 0;
  for (const auto& p : model.Parameters()) elements += p->value().numel();
  return elements;
}

TEST(ShardedMemoryPlan, IsOfTheRankWithMostWeights) {
  struct Run {
    int ranks;
    Arguments arguments, experts;
  };
  for (const auto& [ranks, arguments, experts] :
       {Run{4, {"--parallel.shard=full"}, {}}, Run{2, {"--parallel.shard=optimizer"}, {}},
        Run{4, {"--parallel.shard=full", "--parallel.shard_ranks=2"}, {}},
        Run{4, {"--parallel.shard=gradients", "--parallel.pp=2"}, {}},
        Run{4, {"--parallel.shard=gradients", "--parallel.tp=2"}, {}},
        Run{4, {"--parallel.shard=full", "--parallel.ep=2"}, kExperts}}) {
    const RunSetup setup = SetupOf(arguments, ranks, experts);
    const MemoryPlan plan = PlanMemory(setup);
    const int stages = static_cast<int>(setup.config.parallel.pp), of_a_stage = ranks / stages;
    const int first = static_cast<int>(std::max<int64_t>(plan.pipeline_rank, 0)) * of_a_stage;
    int64_t most = 0;
    for (int rank = first; rank < first + of_a_stage; ++rank) {
      most = std::max(most, ElementsOf(setup, rank, ranks));
    }
    EXPECT_EQ(plan.elements, most) << testing::PrintToString(arguments);
    if (stages == 1 && ranks == 4 && setup.config.parallel.shard_ranks == 0 && experts.empty() &&
        setup.config.parallel.tp == 1) {
      EXPECT_GT(most, ElementsOf(setup, 0, ranks))
          << "a shape whose first shard is not the largest";
    }
  }
}

// AdamW in fp32 has 12 bytes for each weight. Where each rank writes a part, all of them together
// copy the model once, but for shards and stages of different sizes.
TEST(ShardedMemoryPlan, RanksCopyTheModelOnce) {
  struct Run {
    int ranks;
    Arguments arguments, experts;
    double tolerance = 0.01;
  };
  for (auto [ranks, arguments, experts, tolerance] :
       {Run{2, {"--parallel.ep=2"}, kExperts}, Run{4, {"--parallel.ep=2"}, kExperts},
        Run{4, {"--parallel.ep=4"}, kExperts},
        Run{8, {"--parallel.ep=2", "--parallel.tp=2"}, kExperts, 0.05},
        Run{4, {"--parallel.shard=full"}, {}},
        Run{4, {"--parallel.shard=full", "--parallel.shard_ranks=2"}, {}},
        Run{4, {"--parallel.pp=2"}, {}, 0.2},
        Run{4, {"--parallel.pp=2", "--parallel.cp=2"}, {}, 0.2}}) {
    const RunSetup setup = SetupOf(arguments, ranks, experts);
    const auto whole = 12.0 * static_cast<double>(Gpt(setup.model).NumParameters());
    const MemoryPlan plan = PlanMemory(setup);
    EXPECT_TRUE(plan.all_copy) << testing::PrintToString(arguments);
    // Shards count as the largest.
    const auto copies = std::ssize(RanksWithSamePart(setup, MeshOf(setup.config, 0, ranks)));
    const double copied =
        IsSharded(setup) ? 12.0 * static_cast<double>(ranks / copies * plan.elements) : whole;
    EXPECT_NEAR(ranks * static_cast<double>(plan.snapshot), copied, tolerance * copied)
        << testing::PrintToString(arguments);
    EXPECT_GE(ranks * static_cast<double>(plan.snapshot), 0.999 * whole)
        << testing::PrintToString(arguments);
    // By the first rank, all of it.
    Arguments collected = arguments;
    collected.emplace_back("--checkpoint.sharded=false");
    const MemoryPlan of_first = PlanMemory(SetupOf(collected, ranks, experts));
    EXPECT_FALSE(of_first.all_copy);
    EXPECT_NEAR(static_cast<double>(of_first.snapshot), whole, 0.01 * whole)
        << testing::PrintToString(arguments);
    // What it collects is in its memory even if training waits; parts are written where they are.
    for (Arguments* waits : {&arguments, &collected})
      waits->emplace_back("--checkpoint.async=false");
    EXPECT_EQ(PlanMemory(SetupOf(collected, ranks, experts)).snapshot, of_first.snapshot);
    EXPECT_EQ(PlanMemory(SetupOf(arguments, ranks, experts)).snapshot, 0);
  }
}

// The same ranks that write a checkpoint.
TEST(ShardedMemoryPlan, RanksOfOtherCopiesHaveTheSamePart) {
  const auto ranks_of = [](const Arguments& arguments, int rank, int ranks,
                           const Arguments& experts = {}) {
    const RunSetup setup = SetupOf(arguments, ranks, experts);
    return RanksWithSamePart(setup, MeshOf(setup.config, rank, ranks));
  };
  using Ranks = std::vector<int>;
  EXPECT_EQ(ranks_of({}, 1, 4), Ranks({0, 1, 2, 3}));
  EXPECT_EQ(ranks_of({"--parallel.shard=full"}, 1, 4), Ranks({1}));
  EXPECT_EQ(ranks_of({"--parallel.shard=full", "--parallel.shard_ranks=2"}, 1, 4), Ranks({1, 3}));
  EXPECT_EQ(ranks_of({"--parallel.ep=2"}, 1, 4, kExperts), Ranks({1, 3}));
  EXPECT_EQ(ranks_of({"--parallel.tp=2"}, 1, 4), Ranks({1, 3}));
  EXPECT_EQ(ranks_of({"--parallel.cp=2"}, 1, 4), Ranks({0, 1, 2, 3}));
  EXPECT_EQ(ranks_of({"--parallel.cp=2", "--parallel.shard=full"}, 1, 4), Ranks({0, 1}));
  EXPECT_EQ(ranks_of({"--parallel.pp=2"}, 1, 4), Ranks({0, 1}));
}

}  // namespace
}  // namespace lockstep::models
