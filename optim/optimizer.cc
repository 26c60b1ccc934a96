#include "optim/optimizer.h"

#include <cmath>
#include <cstring>
#include <map>
#include <set>

namespace lockstep::optim {

Optimizer::Optimizer(std::vector<std::shared_ptr<Parameter>> parameters) {
  std::set<std::string> names;
  for (std::shared_ptr<Parameter>& p : parameters) {
    LS_CHECK(p != nullptr, "an optimizer got a null parameter");
    LS_CHECK(names.insert(p->name()).second, "two parameters of an optimizer are named '",
             p->name(), "': call Materialize on the module that holds them all, which names them");
    (p->trainable() ? parameters_ : frozen_).push_back(std::move(p));
  }
  See();
}

Optimizer::~Optimizer() {
  if (begun_ && begun_->updater() == this) begun_->SetUpdater(nullptr);
}

TrainingStep Optimizer::BeginStep(StepState& state, int64_t step, double lr,
                                  const StepOptions& options) {
  LS_CHECK(step >= 0, name(), ": the step must be at least 0, got ", step);
  LS_CHECK(lr >= 0 && std::isfinite(lr), name(), ": the learning rate of step ", step,
           " must be finite and at least 0, got ", lr);
  LS_CHECK(options.loss_scale > 0 && std::isfinite(options.loss_scale), name(),
           ": the loss scale of step ", step, " must be finite and positive, got ",
           options.loss_scale);
  LS_CHECK(
      state.updater() != this, name(),
      "::BeginStep: the step before has not ended. What BeginStep returned is its scope: let it "
      "end with the body of the loop");
  LS_CHECK(
      state.updater() == nullptr, name(), "::BeginStep: this StepState is in a step of ",
      state.updater()->name(),
      ", whose learning rate would be overwritten: give each optimizer a StepState of its own");
  LS_CHECK(!parameters_.empty(), name(), ": there is nothing to train: of the ", frozen_.size(),
           " parameters that the optimizer was given none was trainable then");
  for (const auto& p : frozen_) {
    LS_CHECK(
        !p->trainable(), name(), ": the parameter '", p->name(),
        "' was frozen when the optimizer was made, so the optimizer does not train it: make the "
        "optimizer anew after SetTrainable(true)");
  }
  CheckUnchanged();
  for (const auto& p : parameters_) {
    LS_CHECK(!p->grad().defined(), name(), "::BeginStep: the parameter '", p->name(),
             "' has a gradient already: call optimizer.ZeroGrad() at the end of each step, and "
             "BeginStep before the forward");
  }
  const Betas b = betas();
  state.Begin(step, lr, b.first, b.second, options.loss_scale);
  if (options.first_sample) state.SetFirstSample(*options.first_sample);
  state.SetUpdater(this);
  begun_ = state;
  return TrainingStep(state);
}

void Optimizer::Step(const StepState& state) {
  LS_CHECK(state.updater() != nullptr, name(),
           "::Step: no step is under way on this StepState, so there is no learning rate. Begin it "
           "before the forward, and keep the result until after Step:\n"
           "  const auto training = optimizer.BeginStep(state, step, learning_rate);");
  LS_CHECK(state.updater() == this, name(), "::Step: the step on this StepState was begun by ",
           state.updater()->name(),
           ", for whose learning rate and clipping it is: give each optimizer a StepState of its "
           "own, and step it with that");
  LS_CHECK(state.phase() != StepPhase::kUpdated, name(),
           "::Step: this step was updated already. Each update has a BeginStep of "
           "its own, in the body of the loop:\n"
           "  const auto training = optimizer.BeginStep(state, step, learning_rate);");
  CheckUnchanged();
  Update(state);
  state.SetPhase(StepPhase::kUpdated);
  See();
}

void Optimizer::See() {
  seen_.clear();
  for (const auto& p : parameters_) {
    const Storage& storage = p->value().storage();
    seen_.push_back({p->value().dtype(), storage, storage.version()});
  }
}

void Optimizer::CheckUnchanged() const {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& p = *parameters_[i];
    const Seen& seen = seen_[i];
    LS_CHECK(p.value().dtype() == seen.dtype, name(), ": the parameter '", p.name(), "' is ",
             p.value().Describe(), ", but its state was made for ", seen.dtype,
             ": make the optimizer after Materialize");
    if (!keeps_masters() || SizeOf(seen.dtype) != 2) continue;
    const Storage& storage = p.value().storage();
    LS_CHECK(
        storage.SameBlock(seen.storage) && storage.version() == seen.version, name(), ": the ",
        seen.dtype, " parameter '", p.name(),
        "' was written since the optimizer made or updated its f32 original, which would "
        "overwrite it: make the optimizer after Materialize, after weights are loaded, and after "
        "DataParallel; or call LoadState after the weights are loaded");
  }
}

void Optimizer::ZeroGrad() {
  for (const auto& p : parameters_) p->leaf().ZeroGrad();
}

void Optimizer::LoadState(const NamedTensors& state) {
  const NamedTensors own = NamedState();
  std::map<std::string, Tensor> expected(own.begin(), own.end());
  std::map<std::string, Tensor> given;
  for (const auto& [name, tensor] : state) {
    const auto it = expected.find(name);
    if (it == expected.end()) {
      throw InputError(StrCat("optimizer state: unknown tensor '", name,
                              "': it belongs to another model or optimizer"));
    }
    if (!given.emplace(name, tensor).second) {
      throw InputError(StrCat("optimizer state: the tensor '", name, "' is given twice"));
    }
    const Tensor& want = it->second;
    if (!tensor.defined() || !(tensor.shape() == want.shape()) || tensor.dtype() != want.dtype()) {
      throw InputError(StrCat("optimizer state: '", name, "' must be ", want.dtype(), want.shape(),
                              ", got ", tensor.Describe(), ": it belongs to another model"));
    }
  }
  for (const auto& [name, tensor] : own) {
    if (!given.contains(name)) {
      throw InputError(StrCat("optimizer state: the tensor '", name, "' is missing (", given.size(),
                              " of ", own.size(), " are there)"));
    }
  }
  for (const auto& p : parameters_) {
    const auto master = given.find(p->name() + ".master");
    if (master == given.end() || p->value().device().is_meta()) continue;
    const Tensor value = p->value().Detach().To(kCpu).Contiguous();
    const Tensor rounded = master->second.To(kCpu).To(value.dtype()).Contiguous();
    if (std::memcmp(value.raw_data(), rounded.raw_data(), static_cast<size_t>(value.bytes())) !=
        0) {
      throw InputError(
          StrCat("optimizer state: the f32 original of '", p->name(),
                 "' is not that of its weights, which it would overwrite: load the "
                 "weights and the optimizer's state of one checkpoint, weights first"));
    }
  }
  for (const auto& [name, tensor] : own) tensor.CopyFrom(given.at(name));
  See();
}

}  // namespace lockstep::optim
