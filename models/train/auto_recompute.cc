#include "models/train/auto_recompute.h"

#include <algorithm>

namespace lockstep::models {

MemoryPlan SettleRecompute(RunSetup& setup, const MemoryFits& fits) {
  RecomputeChoice& choice = setup.model.recompute;
  if (!choice.automatic) return PlanMemory(setup);
  const auto plan = [&](int64_t layers) {
    choice = {.part = layers == 0 ? RecomputeChoice::Part::kNone : RecomputeChoice::Part::kBlock,
              .layers = layers,
              .automatic = true};
    return PlanMemory(setup);
  };
  MemoryPlan best = plan(0);
  if (fits(best)) return best;
  // The peak falls with each layer but the last, whose backward comes at once: it is lower with the
  // last one only if it is that of the head.
  const int64_t n_layer = setup.model.n_layer;
  int64_t too_few = 0, enough = std::max<int64_t>(1, n_layer - 1);
  best = plan(enough);
  if (!fits(best)) {
    const MemoryPlan all = plan(n_layer);
    if (all.peak.total() < best.peak.total()) return all;
    choice.layers = enough;
    return best;
  }
  while (enough - too_few > 1) {
    const int64_t middle = (too_few + enough) / 2;
    const MemoryPlan tried = plan(middle);
    if (fits(tried)) {
      enough = middle;
      best = tried;
    } else {
      too_few = middle;
    }
  }
  choice.layers = enough;
  return best;
}

}  // namespace lockstep::models
