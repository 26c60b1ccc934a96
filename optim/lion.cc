#include "optim/lion.h"

#include "kernels/lion/lion.h"

namespace lockstep::optim {

Lion::Lion(std::vector<std::shared_ptr<Parameter>> parameters, const LionOptions& options)
    : Optimizer(std::move(parameters)), options_(options) {
  internal::CheckRange("Lion", "beta1", options.beta1, 0, 1);
  internal::CheckRange("Lion", "beta2", options.beta2, 0, 1);
  internal::CheckNotNegative("Lion", "weight_decay", options.weight_decay);
  for (const auto& p : this->parameters()) {
    state_.push_back(internal::MakeState(*p, /*average=*/true, options.master_weights));
  }
}

void Lion::Update(const StepState& state) {
  std::vector<LionTensors> tensors;
  for (size_t i = 0; i < state_.size(); ++i) {
    const Parameter& p = *parameters()[i];
    const Tensor grad = p.grad();
    if (!grad.defined()) continue;
    tensors.push_back({.value = internal::CheckedValue("Lion", p, state_[i], state),
                       .grad = grad.Detach().Contiguous(),
                       .exp_avg = state_[i].average,
                       .master = state_[i].master,
                       .weight_decay = p.decay() ? options_.weight_decay : 0});
  }
  internal::CheckAnyGradient("Lion", *this, tensors.size());
  ops::LionUpdate(tensors, {options_.beta1, options_.beta2}, state);
}

NamedTensors Lion::NamedState() const {
  NamedTensors out;
  for (size_t i = 0; i < state_.size(); ++i) {
    internal::AppendState(*parameters()[i], state_[i], "exp_avg", &out);
  }
  return out;
}

}  // namespace lockstep::optim
