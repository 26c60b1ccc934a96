#include "models/train/auto_recompute.h"

namespace lockstep::models {

MemoryPlan SettleRecompute(RunSetup& setup, const std::function<bool(const MemoryPlan&)>& fits) {
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
  // The peak falls with each layer: between `too_few` and `enough` is the least that fits.
  int64_t too_few = 0, enough = setup.model.n_layer;
  best = plan(enough);
  if (!fits(best)) return best;
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
