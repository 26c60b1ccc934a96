#include "optim/clip.h"

#include <vector>

#include "kernels/global_norm/global_norm.h"

namespace lockstep::optim {

void ClipGradNorm(std::span<const std::shared_ptr<Parameter>> parameters, double max_norm,
                  const StepState& state) {
  std::vector<Tensor> grads;
  for (const auto& p : parameters) {
    if (const Tensor grad = p->grad(); grad.defined()) grads.push_back(grad.Detach().Contiguous());
  }
  LS_CHECK(!grads.empty() || parameters.empty(), "ClipGradNorm: none of the ", parameters.size(),
           " parameters has a gradient: run Backward before it");
  ops::GradNorm(grads, max_norm, state);
}

}  // namespace lockstep::optim
