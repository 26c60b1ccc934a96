#include "models/plan/planned_ledger.h"

#include <algorithm>

#include "core/cuda/device.h"
#include "dist/control/rendezvous.h"
#include "models/memory/allocation_log.h"
#include "models/train/parallel_plan.h"
#include "models/train/run_setup.h"

namespace lockstep::models {

Amounts ByOwner(const StepTime& t) {
  constexpr double kMs = 1e3;
  const Recomputed& again = t.recomputed;
  return {{kProducts, kMs * (t.products + again.products)},
          {kAttention, kMs * (t.attention + again.attention)},
          {kNorms, kMs * t.norms},
          {kActivations, kMs * t.activations},
          {kLoss, kMs * t.loss},
          {kOtherKernels, kMs * (t.other + again.other - t.norms - t.activations - t.loss)},
          {kUpdate, kMs * t.update},
          {kHost, kMs * t.host},
          {"messages of tp", kMs * (t.tensor + again.messages)},
          {"messages of cp", kMs * t.context},
          {"messages of ep", kMs * t.experts},
          {kDataMessages, kMs * t.data},
          {"offload", kMs * t.offload},
          {kPipeline, kMs * t.idle}};
}

Amounts ByOwner(const MemoryPlan& plan) {
  Amounts all;
  for (const auto& [name, kind] : kMemoryKinds) {
    if (plan.peak.*kind > 0) all.emplace_back(name, static_cast<double>(plan.peak.*kind));
  }
  return all;
}

Amounts PlannedStep(const RunSetup& setup, int64_t ranks, const Utilization& utilization) {
  const bool simulated = setup.device.is_cuda() && cuda::Simulated();
  if (simulated || setup.model.lora.rank > 0 || setup.prefers() || WorkersOf(setup) > 0) return {};
  dist::Rendezvous place = dist::ReadRendezvous();
  place.world_size = static_cast<int>(ranks);
  place.local_world_size = std::min(place.local_world_size, place.world_size);
  const Cluster cluster =
      ClusterOfRanks(place, setup.device, setup.config.train.precision, utilization.gemm_flops);
  return ByOwner(TimeOf(PlannedModel::Of(setup), LayoutOf(setup), cluster));
}

}  // namespace lockstep::models
