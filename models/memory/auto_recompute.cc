#include "models/memory/auto_recompute.h"

#include <algorithm>
#include <span>

#include "core/error.h"
#include "dist/groups/agreement.h"
#include "models/options/option_recompute.h"

namespace lockstep::models {
namespace {

void Choose(RunSetup& setup, int64_t layers) {
  std::string& text = setup.config.train.recompute;
  text = layers == 0 ? "none" : layers == setup.model.n_layer ? "block" : StrCat("block:", layers);
  setup.model.recompute = ParseRecompute(text);
  setup.model.recompute.layers = layers;
  setup.model.recompute.automatic = true;
}

MemoryPlan PlanLayers(RunSetup& setup, int64_t layers) {
  Choose(setup, layers);
  return PlanMemory(setup);
}

}  // namespace

std::vector<std::string> RecomputeLadder(const GptConfig& model) {
  using enum nn::MlpActivation;
  std::string ops = model.norm == NormKind::kLayerNorm ? "layer_norm" : "rms_norm";
  const nn::MlpActivation a = model.activation;
  if (a == kSilu || a == kRelu2 || nn::IsGated(a)) ops = StrCat(Name(a), ",", ops);
  return {ops, "mlp", "block"};
}

MemoryPlan SettleRecompute(RunSetup& setup, const MemoryFits& fits) {
  if (!setup.model.recompute.automatic) return PlanMemory(setup);
  const auto plan = [&](int64_t layers) { return PlanLayers(setup, layers); };
  MemoryPlan best = plan(0);
  if (fits(best)) return best;
  // The peak falls with each layer but the last, whose backward comes at once: it is lower with the
  // last one only if it is that of the head, or if a pipeline has several micro-batches in flight.
  const int64_t n_layer = setup.model.n_layer;
  int64_t too_few = 0, enough = std::max<int64_t>(1, n_layer - 1);
  best = plan(enough);
  if (!fits(best)) {
    const MemoryPlan all = plan(n_layer);
    if (all.peak.total() < best.peak.total()) return all;
    Choose(setup, enough);
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
  Choose(setup, enough);
  return best;
}

MemoryPlan AgreeOnRecompute(RunSetup& setup, const MemoryPlan& mine, dist::ProcessGroup* group) {
  const RecomputeChoice& choice = setup.model.recompute;
  if (group == nullptr || !choice.automatic) return mine;
  int64_t most = 0;
  for (const auto& row : dist::GatherValues(*group, std::span(&choice.layers, 1))) {
    most = std::max(most, row[0]);
  }
  return most == choice.layers ? mine : PlanLayers(setup, most);
}

}  // namespace lockstep::models
