#include "optim/clip.h"

#include <unordered_set>
#include <vector>

#include "kernels/global_norm/global_norm.h"

namespace lockstep::optim {

void ClipGradNorm(std::span<const std::shared_ptr<Parameter>> parameters, double max_norm,
                  const StepState& state) {
  LS_CHECK(state.updater() != nullptr,
           "ClipGradNorm: no step is under way on this StepState. Begin it before the forward, and "
           "keep the result until after Step:\n"
           "  const auto training = optimizer.BeginStep(state, step, learning_rate);");
  LS_CHECK(state.phase() != StepPhase::kUpdated,
           "ClipGradNorm after Step clips nothing: call it before Step");
  std::unordered_set<const Parameter*> clipped;
  for (const auto& p : parameters) clipped.insert(p.get());
  for (const auto& p : state.updater()->parameters()) {
    LS_CHECK(
        clipped.contains(p.get()) || !p->grad().defined(),
        "ClipGradNorm: ", state.updater()->name(), " updates '", p->name(),
        "' by this StepState, but it is not among the parameters to clip: pass the optimizer's "
        "own StepState, and parameters() of that optimizer or of the whole model");
  }
  std::vector<Tensor> grads;
  for (const auto& p : parameters) {
    if (const Tensor grad = p->grad(); grad.defined()) grads.push_back(grad.Detach().Contiguous());
  }
  LS_CHECK(!grads.empty(), "ClipGradNorm: none of the ", parameters.size(),
           " parameters has a gradient: run Backward before it");
  ops::GradNorm(grads, max_norm, state);
  state.SetPhase(StepPhase::kClipped);
}

}  // namespace lockstep::optim
