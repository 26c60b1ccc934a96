#include "optim/muon.h"

#include <algorithm>

namespace lockstep::optim {

Muon::Muon(std::vector<std::shared_ptr<Parameter>> parameters, const MuonOptions& options)
    : Optimizer(std::move(parameters)), options_(options) {
  internal::CheckRange("Muon", "momentum", options.momentum, 0, 1);
  internal::CheckRange("Muon", "steps", options.steps, 1, 100);
  internal::CheckNotNegative("Muon", "weight_decay", options.weight_decay);
  std::vector<std::shared_ptr<Parameter>> others;
  for (const auto& p : this->parameters()) {
    const bool two = p->value().ndim() == 2;
    const bool chosen = options.matrix ? options.matrix(*p) : two;
    LS_CHECK(!chosen || two, "Muon: the parameter '", p->name(),
             "' was chosen as a matrix, but is ", p->value().Describe(), ": leave it to AdamW");
    (chosen ? matrices_ : others).push_back(p);
  }
  for (const auto& p : matrices_) {
    state_.push_back(internal::MakeState(*p, /*average=*/true, options.master_weights));
  }
  adamw_ = std::make_unique<AdamW>(std::move(others),
                                   AdamWOptions{.beta1 = options.beta1,
                                                .beta2 = options.beta2,
                                                .eps = options.eps,
                                                .weight_decay = options.weight_decay,
                                                .master_weights = options.master_weights});
}

void Muon::Update(const StepState& state) {
  std::vector<MuonTensors> tensors;
  for (size_t i = 0; i < matrices_.size(); ++i) {
    const Parameter& p = *matrices_[i];
    const Tensor grad = p.grad();
    if (!grad.defined()) continue;
    tensors.push_back({.value = internal::CheckedValue("Muon", p, state_[i], state),
                       .grad = grad.Detach().Contiguous(),
                       .momentum = state_[i].average,
                       .master = state_[i].master,
                       .weight_decay = p.decay() ? options_.weight_decay : 0});
  }
  const auto& others = adamw_->parameters();
  const auto with_gradient = std::count_if(others.begin(), others.end(),
                                           [](const auto& p) { return p->grad().defined(); });
  internal::CheckAnyGradient("Muon", *this, tensors.size() + static_cast<size_t>(with_gradient));
  ops::MuonUpdate(tensors,
                  {.momentum = options_.momentum,
                   .nesterov = options_.nesterov,
                   .steps = options_.steps,
                   .scale = options_.scale},
                  state);
  if (with_gradient > 0) adamw_->Update(state);
}

NamedTensors Muon::NamedState() const {
  NamedTensors out;
  for (size_t i = 0; i < matrices_.size(); ++i) {
    internal::AppendState(*matrices_[i], state_[i], "momentum_buffer", &out);
  }
  const NamedTensors others = adamw_->NamedState();
  out.insert(out.end(), others.begin(), others.end());
  return out;
}

}  // namespace lockstep::optim
