#include "models/plan/quick_memory.h"

#include <algorithm>
#include <cmath>

#include "models/memory/memory_plan.h"
#include "models/options/option_offload.h"
#include "models/plan/step_time.h"

namespace lockstep::models {
namespace {

constexpr int64_t kFew = 2, kMore = 4;        // blocks
constexpr double kOffloadBuffers = 64 << 20;  // optimizer state on its way

// Micro-batches whose activations the first rank of a pipeline keeps, in those of all its stages.
double InFlight(const Layout& layout) {
  const auto p = static_cast<double>(layout.mesh.pp), m = static_cast<double>(layout.grad_accum);
  if (layout.mesh.pp == 1) return 1;
  const auto chunks = static_cast<double>(layout.chunks);
  const double most = layout.schedule == "interleaved" ? p + (p - 1) / chunks : p;
  return std::min(m, most);
}

}  // namespace

QuickMemory::Shallow QuickMemory::Make(const Layout& layout, int64_t batch) const {
  const MeshSizes& m = layout.mesh;
  const int64_t dp = m.ranks() > 1 ? std::max<int64_t>(2, m.ep) : 1;
  const Layout alone{.mesh = {.dp = dp, .tp = m.tp, .cp = m.cp, .ep = m.ep},
                     .recompute = layout.recompute,
                     .batch = batch};
  const auto plan = [&](int64_t blocks) {
    RunSetup setup = setup_;
    setup.config.model.n_layer = setup.model.n_layer = blocks;
    setup.model.n_dense = 0;
    setup.config.train.cuda_graphs = false;
    Apply(alone, setup);
    return PlanMemory(setup).peak;
  };
  const MemoryKinds few = plan(kFew), more = plan(kMore);
  Shallow made;
  const auto split = [&](int64_t MemoryKinds::*kind, double Part::*part) {
    const double of_block =
        static_cast<double>(more.*kind - few.*kind) / static_cast<double>(kMore - kFew);
    made.block.*part = of_block;
    made.ends.*part = static_cast<double>(few.*kind) - of_block * kFew;
  };
  split(&MemoryKinds::parameters, &Part::parameters);
  split(&MemoryKinds::gradients, &Part::gradients);
  split(&MemoryKinds::optimizer, &Part::optimizer);
  split(&MemoryKinds::activations, &Part::activations);
  made.workspace = static_cast<double>(more.workspace + more.buckets);
  return made;
}

const QuickMemory::Shallow& QuickMemory::ShallowOf(const Layout& layout, int64_t batch) {
  const MeshSizes& m = layout.mesh;
  const auto [it, is_new] =
      made_.try_emplace({m.tp, m.cp, m.ep, batch, m.ranks() > 1, layout.recompute});
  Made& made = it->second;
  if (is_new) {
    try {
      made.shallow = Make(layout, batch);
    } catch (...) {
      made.error = std::current_exception();
    }
  }
  if (made.error) std::rethrow_exception(made.error);
  return made.shallow;
}

QuickMemory::Shallow QuickMemory::BlocksOf(Layout layout) {
  const double share = BlockShare(layout, static_cast<double>(setup_.model.n_layer));
  if (share > 0 && share < 1) {
    layout.recompute = "block";
    Shallow s = BlocksOf(layout);
    layout.recompute = "none";
    const Shallow none = BlocksOf(layout);
    const auto mix = [&](double* again, double kept) {
      *again = share * *again + (1 - share) * kept;
    };
    mix(&s.block.activations, none.block.activations);
    mix(&s.ends.activations, none.ends.activations);
    mix(&s.workspace, none.workspace);
    return s;
  }
  Shallow s = ShallowOf(layout, 1);
  if (layout.batch == 1) return s;
  const Shallow &one = ShallowOf(layout, 1), &two = ShallowOf(layout, 2);
  const auto more = static_cast<double>(layout.batch - 1);
  s.block.activations += more * (two.block.activations - one.block.activations);
  s.ends.activations += more * (two.ends.activations - one.ends.activations);
  s.workspace += more * (two.workspace - one.workspace);
  return s;
}

QuickPlan QuickMemory::Of(const Layout& layout) {
  const Shallow s = BlocksOf(layout);
  const OffloadChoice offload = ParseOffload(layout.offload);
  const auto pp = static_cast<double>(layout.mesh.pp),
             shards = static_cast<double>(layout.shards());
  const auto layers = static_cast<double>(setup_.model.n_layer);
  const auto stages = static_cast<double>(layout.stages_of_rank());
  // By parameters, as the cut is by FLOPs.
  const double head = setup_.model.tie_embeddings ? s.ends.parameters : s.ends.parameters / 2;
  const double blocks =
      layout.mesh.pp == 1
          ? layers
          : stages * CutStages(layers, head / s.block.parameters, pp * stages).blocks;
  // Of untied ends, a stage has only one; a V has both.
  const bool both = layout.mesh.pp == 1 || setup_.model.tie_embeddings || layout.schedule == "zbv";
  const double ends = both ? 1 : 0.5;
  const auto all = [&](double Part::*part) { return ends * s.ends.*part + blocks * s.block.*part; };
  double parameters = all(&Part::parameters), gradients = all(&Part::gradients);
  double optimizer = all(&Part::optimizer) / shards, units = 0;
  if (shards > 1 && layout.shard != "optimizer") {
    gradients /= shards;
    units += std::max(2 * s.block.gradients, ends * s.ends.gradients);
  }
  if (shards > 1 && layout.shard == "full" && layout.mesh.pp == 1) {
    parameters /= shards;
    units += std::max(2 * s.block.parameters, ends * s.ends.parameters);
  }
  QuickPlan plan;
  if (offload.optimizer) {
    plan.host += optimizer;
    optimizer = std::min(optimizer, kOffloadBuffers);
  }
  if (offload.weights) {
    const double kept = ends * s.ends.parameters / shards + 2 * s.block.parameters;
    plan.host += std::max(0.0, parameters - kept);
    parameters = std::min(parameters, kept);
  }
  plan.activations = InFlight(layout) * blocks * s.block.activations + s.ends.activations;
  if (offload.activations) {
    const double kept = std::min(blocks, 2.0) * s.block.activations + s.ends.activations;
    plan.host += std::max(0.0, plan.activations - kept);
    plan.activations = std::min(plan.activations, kept);
  }
  plan.weights = parameters + gradients + optimizer + units;
  plan.workspace = s.workspace;
  plan.total =
      plan.weights + plan.activations + plan.workspace + static_cast<double>(setup_.runtime_bytes);
  return plan;
}

}  // namespace lockstep::models
