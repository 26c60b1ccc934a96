#include "models/train/parallel_plan.h"

#include <algorithm>
#include <iterator>

#include "dist/context/shared_samples.h"
#include "dist/data_parallel/data_parallel.h"
#include "dist/expert/expert_exchange.h"
#include "dist/expert/expert_parallel.h"
#include "models/options/plan_rules.h"
#include "models/train/run_ranks.h"
#include "models/train/run_setup.h"

namespace lockstep::models {

MeshGroups MeshGroups::Of(const dist::Mesh& mesh, const Make& make, bool sums_context) {
  const auto along = [&](const std::vector<std::string>& axes, bool on_host = false) {
    return mesh.RanksAlong(axes).size() > 1 ? make(axes, on_host) : nullptr;
  };
  using Axes = std::vector<std::string>;
  MeshGroups groups{.data = along(sums_context ? Axes{"dp", "cp"} : Axes{"dp"})};
  groups.pipeline = along({"pp"});
  groups.context = along({"cp"});
  groups.tensor = along({"tp"});
  groups.control =
      along(sums_context ? Axes{"pp", "dp", "cp"} : Axes{"pp", "dp"}, /*on_host=*/true);
  if (mesh.size("ep") > 1) {
    groups.experts = along({"ep"});
    groups.expert_copies = along({"edp"});
    groups.data_ranks_of_experts =
        ParallelOptions{.cp = mesh.size("cp"), .ep = mesh.size("ep")}.data_ranks_of_experts();
  }
  if (mesh.size("replicate") == 1) return groups;
  groups.shard = along({"shard"});
  groups.replicate = along({"replicate"});
  return groups;
}

ParallelPlan PlanOf(const RunSetup& setup, TraceRecorder* trace) {
  const RunConfig& config = setup.config;
  ParallelPlan plan{.micro_batches = setup.micro_batches,
                    .tensor_parts = config.parallel.tensor_parts(),
                    .fast_tensor_sums = config.dist.reduction == "fast",
                    .context_pairs = config.parallel.context_pairs(),
                    .sums_context_with_data = SumsContextWithData(config)};
  if (config.parallel.pp > 1) {
    plan.pipeline = ToPipelinePlan(config, setup.window(), trace);
  }
  if (WorkersOf(setup) > 0) {
    plan.diloco = ToDiLoCoOptions(config.dist, setup.micro_batches);
  } else if (IsSharded(setup)) {
    plan.shard = ToShardOptions(config, setup.micro_batches, trace);
  } else if (SumsGradients(setup)) {
    plan.reducer = ToReducerOptions(config.dist, setup.micro_batches, trace);
  }
  return plan;
}

bool IsSharded(const RunSetup& setup) {
  return setup.data_ranks > 1 && setup.config.parallel.shard != "none";
}

bool SharesOutModel(const RunSetup& setup) {
  const ParallelOptions& parallel = setup.config.parallel;
  return IsSharded(setup) || parallel.pp > 1 || parallel.tp > 1 || parallel.ep > 1;
}

bool SavesParts(const RunSetup& setup) {
  return SharesOutModel(setup) && setup.config.checkpoint.sharded && setup.model.lora.rank == 0;
}

std::vector<int> RanksWithSamePart(const RunSetup& setup, const dist::Mesh& mesh) {
  const std::vector<int> same_experts = mesh.RanksAlong({"edp"});  // of dp and cp
  if (!IsSharded(setup)) return same_experts;
  std::vector<int> ranks;
  std::ranges::set_intersection(mesh.RanksAlong({"replicate", "cp"}), same_experts,
                                std::back_inserter(ranks));
  return ranks;
}

int64_t WorkersOf(const RunSetup& setup) {
  return setup.config.dist.outer_every > 0 ? setup.data_ranks : 0;
}

bool SumsGradients(const RunSetup& setup) {
  const ParallelOptions& parallel = setup.config.parallel;
  return setup.data_ranks > 1 || parallel.tp > 1 || parallel.cp > 1 || parallel.pp > 1 ||
         setup.config.dist.reduction != "fast" || WorkersOf(setup) > 0;
}

std::unique_ptr<dist::DataRanks> MakeDataRanks(const MeshGroups& groups, const ParallelPlan& plan,
                                               Module& module,
                                               const dist::TiedGradients* separate_uses) {
  dist::ProcessGroup* const all = groups.data.get();
  if (plan.diloco) {
    return std::make_unique<dist::DiLoCo>(all, module, *plan.diloco, groups.control);
  }
  if (plan.shard) {
    const dist::ShardGroups ranks =
        groups.replicate ? dist::ShardGroups(all, groups.shard.get(), groups.replicate.get())
                         : dist::ShardGroups(all);
    dist::ShardOptions shard = *plan.shard;
    shard.micro_batches = plan.micro_batches;
    shard.observes = separate_uses == nullptr;
    shard.separate_uses = separate_uses;
    return std::make_unique<dist::FullyShard>(ranks, module, std::move(shard), groups.control);
  }
  if (!plan.reducer) return nullptr;
  dist::ReducerOptions reducer = *plan.reducer;
  reducer.micro_batches = plan.micro_batches;
  reducer.is_part = separate_uses != nullptr || groups.context || groups.tensor;
  if (groups.data_ranks_of_experts > 1) {
    const bool any = std::ranges::any_of(
        module.Parameters(), [](const auto& p) { return dist::IsOfDistributedExperts(*p); });
    if (any) {
      return std::make_unique<dist::ExpertParallel>(all, groups.expert_copies.get(), module,
                                                    std::move(reducer), groups.control);
    }
    // A stage without experts has the micro-batches of the others.
    reducer.assignment =
        dist::AssignForExperts(reducer.micro_batches, all->size(), groups.data_ranks_of_experts,
                               reducer.sum == dist::GradientSum::kOrdered);
    return std::make_unique<dist::DataParallel>(all, module, std::move(reducer), groups.control);
  }
  if (plan.sums_context_with_data) {
    const int parts = dist::SizeOf(groups.context.get());
    return std::make_unique<dist::SharedSamples>(all, parts, module, std::move(reducer),
                                                 groups.control);
  }
  return std::make_unique<dist::DataParallel>(all, module, std::move(reducer), groups.control);
}

}  // namespace lockstep::models
