#include "models/train/parallel_plan.h"

#include "dist/data_parallel/data_parallel.h"

namespace lockstep::models {

MeshGroups MeshGroups::Of(const dist::Mesh& mesh, const Make& make) {
  const auto along = [&](const std::vector<std::string>& axes, bool on_host = false) {
    return mesh.RanksAlong(axes).size() > 1 ? make(axes, on_host) : nullptr;
  };
  MeshGroups groups{.data = along({"dp"})};
  groups.pipeline = along({"pp"});
  groups.tensor = along({"tp"});
  groups.control = along({"pp", "dp"}, /*on_host=*/true);
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
  return std::make_unique<dist::DataParallel>(all, module, *plan.reducer, groups.control);
}

}  // namespace lockstep::models
