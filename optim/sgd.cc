#include "optim/sgd.h"

#include "kernels/sgd/sgd.h"

namespace lockstep::optim {

Sgd::Sgd(std::vector<std::shared_ptr<Parameter>> parameters, const SgdOptions& options)
    : Optimizer(std::move(parameters)), options_(options) {
  internal::CheckRange("Sgd", "momentum", options.momentum, 0, 1);
  internal::CheckNotNegative("Sgd", "weight_decay", options.weight_decay);
  LS_CHECK(!options.nesterov || options.momentum > 0,
           "Sgd: nesterov needs momentum, which is 0: set it, such as momentum = 0.9");
  for (const auto& p : this->parameters()) {
    state_.push_back(internal::MakeState(*p, options.momentum > 0, options.master_weights));
  }
}

void Sgd::Update(const StepState& state) {
  std::vector<SgdTensors> tensors;
  for (size_t i = 0; i < state_.size(); ++i) {
    const Parameter& p = *parameters()[i];
    const Tensor grad = p.grad();
    if (!grad.defined()) continue;
    tensors.push_back({.value = internal::CheckedValue("Sgd", p, state_[i], state),
                       .grad = grad.Detach().Contiguous(),
                       .momentum = state_[i].average,
                       .master = state_[i].master,
                       .weight_decay = p.decay() ? options_.weight_decay : 0});
  }
  internal::CheckAnyGradient("Sgd", *this, tensors.size());
  ops::SgdUpdate(tensors, {options_.momentum, options_.nesterov}, state);
}

NamedTensors Sgd::NamedState() const {
  NamedTensors out;
  for (size_t i = 0; i < state_.size(); ++i) {
    internal::AppendState(*parameters()[i], state_[i], "momentum_buffer", &out);
  }
  return out;
}

}  // namespace lockstep::optim
