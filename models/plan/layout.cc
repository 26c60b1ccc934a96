#include "models/plan/layout.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "models/memory/memory_advice.h"
#include "models/options/option_recompute.h"
#include "models/train/run_setup.h"

namespace lockstep::models {

void Apply(const Layout& layout, RunSetup& setup) {
  RunConfig& c = setup.config;
  ParallelOptions& p = c.parallel;
  p.tp = layout.mesh.tp;
  p.pp = layout.mesh.pp;
  p.cp = layout.mesh.cp;
  p.ep = layout.mesh.ep;
  p.shard = layout.shard;
  p.shard_ranks = layout.shard_ranks;
  p.schedule = layout.schedule;
  c.train.recompute = layout.recompute;
  c.train.offload = layout.offload;
  c.train.batch_size = layout.batch;
  c.train.grad_accum = layout.grad_accum;
  setup.data_ranks = layout.mesh.dp;
  setup.micro_batches = layout.grad_accum * layout.mesh.dp;
  SettlePlan(setup);
}

Layout LayoutOf(const RunSetup& setup) {
  const ParallelOptions& p = setup.config.parallel;
  const TrainOptions& train = setup.config.train;
  return {.mesh = {.dp = setup.data_ranks, .tp = p.tp, .pp = p.pp, .cp = p.cp, .ep = p.ep},
          .shard = p.shard,
          .shard_ranks = p.shard_ranks,
          .schedule = p.schedule,
          .recompute = train.recompute,
          .offload = train.offload,
          .batch = train.batch_size,
          .grad_accum = std::max<int64_t>(1, setup.micro_batches / setup.data_ranks)};
}

std::string Describe(const Layout& layout) {
  const MeshSizes& m = layout.mesh;
  std::string s = StrCat("dp=", m.dp);
  for (const auto& [axis, size] :
       {std::pair(" tp=", m.tp), {" pp=", m.pp}, {" cp=", m.cp}, {" ep=", m.ep}}) {
    if (size > 1) s += StrCat(axis, size);
  }
  if (m.pp > 1) s += " " + layout.schedule;
  if (layout.shard != "none") {
    s += StrCat(", shard=", layout.shard);
    if (layout.shards() < m.dp) s += StrCat(" on ", layout.shards());
  }
  s += StrCat(", batch ", layout.batch, " x ", layout.grad_accum);
  if (layout.recompute != "none") s += ", recompute=" + layout.recompute;
  if (layout.offload != "none") s += ", offload=" + layout.offload;
  return s;
}

double BlockShare(const Layout& layout, double layers) {
  const RecomputeChoice choice = ParseRecompute(layout.recompute);
  if (choice.part != RecomputeChoice::Part::kBlock) return 0;
  return choice.layers < 0 ? 1 : std::min(1.0, static_cast<double>(choice.layers) / layers);
}

}  // namespace lockstep::models
