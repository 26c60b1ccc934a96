#include "models/train/parallel_plan.h"

#include <algorithm>

#include "dist/context/shared_samples.h"
#include "dist/data_parallel/data_parallel.h"
#include "dist/expert/expert_exchange.h"
#include "dist/expert/expert_parallel.h"

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
    groups.data_ranks_of_experts = std::max(1, mesh.size("ep") / mesh.size("cp"));
  }
  if (mesh.size("replicate") == 1) return groups;
  groups.shard = along({"shard"});
  groups.replicate = along({"replicate"});
  return groups;
}

std::unique_ptr<dist::DataRanks> MakeDataRanks(const MeshGroups& groups, const ParallelPlan& plan,
                                               Module& module) {
  dist::ProcessGroup* const all = groups.data.get();
  if (plan.shard) {
    const dist::ShardGroups ranks =
        groups.replicate ? dist::ShardGroups(all, groups.shard.get(), groups.replicate.get())
                         : dist::ShardGroups(all);
    return std::make_unique<dist::FullyShard>(ranks, module, *plan.shard, groups.control);
  }
  if (!plan.reducer) return nullptr;
  if (groups.data_ranks_of_experts > 1) {
    const bool any = std::ranges::any_of(module.Parameters(),
                                         [](const auto& p) { return dist::IsOfSharedExperts(*p); });
    if (any) {
      return std::make_unique<dist::ExpertParallel>(all, groups.expert_copies.get(), module,
                                                    *plan.reducer, groups.control);
    }
    // A stage without experts has the micro-batches of the others.
    dist::ReducerOptions reducer = *plan.reducer;
    reducer.assignment =
        dist::AssignForExperts(reducer.micro_batches, all->size(), groups.data_ranks_of_experts,
                               reducer.sum == dist::GradientSum::kOrdered);
    return std::make_unique<dist::DataParallel>(all, module, std::move(reducer), groups.control);
  }
  if (plan.sums_context_with_data) {
    const int parts = dist::SizeOf(groups.context.get());
    return std::make_unique<dist::SharedSamples>(all, parts, module, *plan.reducer, groups.control);
  }
  return std::make_unique<dist::DataParallel>(all, module, *plan.reducer, groups.control);
}

}  // namespace lockstep::models
