#include "optim/optimizer.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <map>
#include <numeric>
#include <tuple>

#include "kernels/loss_scale/loss_scale.h"

namespace lockstep::optim {

void CheckRange(const char* optimizer, const std::string& name, double value, double low,
                double high) {
  LS_CHECK(value >= low && value < high, optimizer, ": ", name, " must be in [", low, ", ", high,
           "), got ", value);
}

void CheckNotNegative(const char* optimizer, const std::string& name, double value) {
  LS_CHECK(value >= 0 && std::isfinite(value), optimizer, ": ", name,
           " must be finite and at least 0, got ", value);
}

namespace {

// The whole tensor; each rank that updates the parameter has a part of it.
Tensor WholeOf(const Parameter& p, const Tensor& part) {
  return p.exchange() ? p.exchange()->GatherHere(p, part.Detach().To(p.device())) : p.WholeOf(part);
}

// What the rule updates as tensors of their own: runs of the parameter's rows, or all of them.
std::vector<UpdateTensors> SegmentsOf(const Parameter& p, const UpdateTensors& whole,
                                      const UpdateRule& rule) {
  const std::vector<int64_t> sizes = rule.segments ? rule.segments(p) : std::vector<int64_t>();
  if (sizes.empty()) return {whole};
  std::vector<UpdateTensors> segments;
  int64_t begin = 0;
  for (const int64_t rows : sizes) {
    segments.push_back(
        WithTensors(whole, [&](const Tensor& x) { return x.Slice(0, begin, begin + rows); }));
    segments.back().place.skip += begin * (whole.value.numel() / whole.value.dim(0));
    begin += rows;
  }
  return segments;
}

// Updates a parameter that ranks have parts of by a rule that needs the whole: each rank gathers
// it, and makes the whole update.
void UpdateWhole(const Parameter& p, const UpdateTensors& parts, const UpdateRule& rule,
                 const Betas& betas, const StepState& state) {
  UpdateTensors whole = parts;
  whole.grad = WholeOf(p, parts.grad);
  whole.place = {};
  whole.average = {};  // that of the parts will follow
  std::vector<std::pair<Tensor, Tensor*>> written = {{parts.value, &whole.value}};
  for (size_t k = 0; k < parts.states.size(); ++k) {
    written.emplace_back(parts.states[k], &whole.states[k]);
  }
  if (parts.master.defined()) written.emplace_back(parts.master, &whole.master);
  for (const auto& [part, to] : written) *to = WholeOf(p, part);
  rule.update(SegmentsOf(p, whole, rule), betas, state);
  for (const auto& [part, from] : written) part.CopyFrom(p.PartOf(*from));
}

}  // namespace

Optimizer::Optimizer(std::vector<ParameterGroup> groups, Settings settings)
    : settings_(std::move(settings)) {
  LS_CHECK(settings_.state_dtype == DType::kF32 || settings_.state_dtype == DType::kBF16, name(),
           ": state_dtype must be f32 or bf16, got ", settings_.state_dtype);
  LS_CHECK(settings_.offload.buffer_bytes > 0, name(),
           ": the buffers of StateOffload must have at least a byte, got ",
           settings_.offload.buffer_bytes);
  CheckRange(name(), "ema", settings_.ema, 0, 1);
  // Two groups may not share a parameter, nor two parameters a name.
  std::map<std::string, std::pair<const Parameter*, size_t>> places;
  for (size_t g = 0; g < groups.size(); ++g) {
    for (const auto& p : groups[g].parameters) {
      LS_CHECK(p != nullptr, "an optimizer got a null parameter");
      const auto [before, is_new] = places.try_emplace(p->name(), p.get(), g);
      const auto& [other, other_group] = before->second;
      LS_CHECK(is_new || other != p.get(), name(), ": the parameter '", p->name(),
               "' is given twice, in the groups ", other_group, " and ", g,
               ": leave it in one of them");
      LS_CHECK(is_new, "two parameters of an optimizer are named '", p->name(),
               "': call Materialize on the module that holds them all, which names them");
    }
  }
  if (groups.empty()) groups.emplace_back();
  for (size_t g = 0; g < groups.size(); ++g) {
    AddGroup(groups[g], groups.size() > 1 ? StrCat(" of group ", g) : "");
  }
  SeeVersions();
  for (const auto& p : parameters_) p->leaf().CountGradientUsers(1);
}

void Optimizer::AddGroup(const ParameterGroup& group, const std::string& of_group) {
  const double weight_decay = group.weight_decay.value_or(settings_.weight_decay);
  const Betas betas = group.betas.value_or(settings_.betas.value_or(Betas{}));
  CheckNotNegative(name(), "lr_factor" + of_group, group.lr_factor);
  CheckNotNegative(name(), "weight_decay" + of_group, weight_decay);
  CheckRange(name(), "beta1" + of_group, betas.first, 0, 1);
  CheckRange(name(), "beta2" + of_group, betas.second, 0, 1);
  LS_CHECK(settings_.betas || !group.betas, name(), " has no betas: leave out those", of_group);
  const auto known = std::find(betas_.begin(), betas_.end(), betas);
  const auto betas_index = static_cast<size_t>(known - betas_.begin());
  if (known == betas_.end()) betas_.push_back(betas);

  const size_t first = parameters_.size();
  for (const auto& p : group.parameters) {
    if (!p->trainable()) {
      frozen_.push_back(p);
      continue;
    }
    const Tensor value = p->value().Detach();
    Trained t{.betas = betas_index,
              .device = p->device(),
              .dtype = value.dtype(),
              .shape = value.shape()};
    const auto takes = [&](const UpdateRule& rule) { return !rule.takes || rule.takes(*p); };
    const auto rule = std::find_if(settings_.rules.begin(), settings_.rules.end(), takes);
    LS_CHECK(rule != settings_.rules.end(), name(), " has no rule for the parameter '", p->name(),
             "'");
    t.rule = static_cast<size_t>(rule - settings_.rules.begin());
    const auto segments = rule->segments ? rule->segments(*p) : std::vector<int64_t>();
    const int64_t rows = std::accumulate(segments.begin(), segments.end(), int64_t{0});
    LS_CHECK(segments.empty() || rows == p->logical_shape()[0], name(), ": the segments of '",
             p->name(), "' have ", rows, " rows together, but it is ", p->logical_shape());
    const DType wide = StateDType(value),
                dtype = wide == DType::kF32 ? settings_.state_dtype : wide;
    for (size_t k = 0; k < rule->states.size(); ++k) {
      t.tensors.states.push_back(NewState(*p, dtype));
      t.tensors.states.back().Fill(0);
    }
    const bool narrow = SizeOf(value.dtype()) == 2;
    if (settings_.master_weights && narrow) {
      t.tensors.master = NewState(*p, DType::kF32);
      t.tensors.master.CopyFrom(value);
    }
    if (keeps_averages()) {
      t.tensors.average = NewState(*p, wide);
      t.tensors.average.CopyFrom(value);
    }
    LS_CHECK(settings_.master_weights || value.dtype() != DType::kF16, name(),
             ": the f16 parameter '", p->name(),
             "' needs an f32 original: leave out master_weights = false, or use bf16");
    if ((narrow && !settings_.master_weights) || dtype == DType::kBF16) {
      t.tensors.parameter = HashName(p->name());
      t.tensors.place = PlaceOf(p->layout(), p->logical_shape());
    }
    t.tensors.weight_decay = weight_decay;
    t.tensors.lr_factor = group.lr_factor;
    parameters_.push_back(p);
    trained_.push_back(std::move(t));
  }
  const auto decays = [](const auto& p) { return p->decay(); };
  LS_CHECK(
      group.weight_decay.value_or(0) == 0 || first == parameters_.size() ||
          std::any_of(parameters_.begin() + static_cast<int64_t>(first), parameters_.end(), decays),
      name(), ": the weight_decay", of_group,
      " has no effect, since none of its parameters has decay(): call set_decay(true) on those "
      "that are to decay, or leave it out");
  if (first == parameters_.size()) {
    nothing_to_train_ = StrCat("of the ", group.parameters.size(), " parameters", of_group,
                               " none was trainable when the optimizer was made");
  }
}

// Uninitialised.
Tensor Optimizer::NewState(const Parameter& p, DType dtype) const {
  const Shape& shape = p.part().shape();
  return settings_.offload.to_host ? HostTensor(shape, dtype, p.device())
                                   : Tensor::Empty(shape, dtype, p.device());
}

Optimizer::~Optimizer() {
  const TrainingStep* const training = begun_ ? TrainingStep::On(*begun_) : nullptr;
  if (training != nullptr && &training->optimizer() == this) begun_->SetWatch(nullptr);
  for (const auto& p : parameters_) p->leaf().CountGradientUsers(-1);
}

void Optimizer::CheckNumber(int64_t step) const {
  const auto keeps_state = [&](const Trained& t) {
    return !t.tensors.states.empty() || t.tensors.average.defined();
  };
  if (next_ == 0 && !any_next_) {
    LS_CHECK(
        step == 0 || std::none_of(trained_.begin(), trained_.end(), keeps_state), name(),
        "::BeginStep: the first step of a new optimizer is 0, got ", step,
        ": its state is empty, and bias corrections count from step 0. To continue a run, load "
        "its state before:\n"
        "  step = dist::LoadTraining(file, model, optimizer, state);\n"
        "or optimizer.LoadState. An optimizer made in the middle of a run counts its own "
        "steps:\n"
        "  optimizer.BeginStep(state, step - first, schedule(step));");
  }
  LS_CHECK(any_next_ || step >= next_, name(), "::BeginStep: step ", step, " after the update of ",
           next_ - 1,
           ": the number of the step must grow with each update, through all epochs, since bias "
           "corrections and random numbers (dropout) depend on it:\n"
           "  optimizer.BeginStep(state, step++, learning_rate);\n"
           "To return to an earlier step, load the optimizer's state of that step");
}

// The state still has the values of the step before. Does not wait for the device: where that is
// many steps behind, a step may be missed.
void Optimizer::WarnOfSkipped(const StepState& state) {
  constexpr size_t kMost = 8;
  if (next_ > 0 && unseen_.size() < kMost && !state.device().is_meta() && !state.loss_scaling() &&
      !state.was_read()) {
    unseen_.emplace_back(HostRead(state.tensor()));
  }
  while (!unseen_.empty() && unseen_.front().Ready()) {
    const StepValues values = ToStepValues(unseen_.front());
    unseen_.erase(unseen_.begin());
    if (values.found_inf != kNotFinite) continue;
    ++skipped_;
    if ((skipped_ & (skipped_ - 1)) != 0) continue;  // the 1st, 2nd, 4th, 8th, ...
    std::fprintf(stderr,
                 "warning: %s left out the update of step %" PRId64
                 ", since a gradient is infinite or NaN; so far %" PRId64
                 " update(s). state.Read().found_inf says so after each Step\n",
                 name(), values.step, skipped_);
  }
}

TrainingStep Optimizer::BeginStep(StepState& state, int64_t step, double lr,
                                  const StepOptions& options) {
  LS_CHECK(step >= 0, name(), ": the step must be at least 0, got ", step);
  LS_CHECK(lr >= 0 && std::isfinite(lr), name(), ": the learning rate of step ", step,
           " must be finite and at least 0, got ", lr);
  const TrainingStep* const under_way = TrainingStep::On(state);
  LS_CHECK(
      under_way == nullptr || &under_way->optimizer() != this, name(),
      "::BeginStep: the step before has not ended. What BeginStep returned is its scope: let it "
      "end with the body of the loop");
  LS_CHECK(
      under_way == nullptr, name(), "::BeginStep: this StepState is in a step of ",
      under_way->optimizer().name(),
      ", whose learning rate would be overwritten: give each optimizer a StepState of its own");
  LS_CHECK(nothing_to_train_.empty(), name(), ": there is nothing to train: ", nothing_to_train_,
           ": leave such a group out, or make the optimizer after SetTrainable(true)");
  for (const auto& p : frozen_) {
    LS_CHECK(
        !p->trainable(), name(), ": the parameter '", p->name(),
        "' was frozen when the optimizer was made, so the optimizer does not train it: make the "
        "optimizer anew after SetTrainable(true)");
  }
  CheckUnchanged(state);
  for (const auto& p : parameters_) {
    LS_CHECK(!p->grad().defined(), name(), "::BeginStep: the parameter '", p->name(),
             "' has a gradient already: call optimizer.ZeroGrad() at the end of each step, and "
             "BeginStep before the forward");
    LS_CHECK(ValueOf(*p).dtype() != DType::kF16 || state.loss_scaling(), name(),
             "::BeginStep: the parameter '", p->name(),
             "' is f16, in which small gradients vanish without a loss scale: after the StepState "
             "is made, write\n  state.EnableLossScaling();");
  }
  CheckNumber(step);
  WarnOfSkipped(state);
  state.Begin(step, lr, betas_);
  if (options.first_sample) state.SetFirstSample(*options.first_sample);
  number_ = step;
  begun_ = state;
  return TrainingStep(state, *this);
}

void Optimizer::Step(const StepState& state) {
  const TrainingStep* const training = TrainingStep::On(state);
  LS_CHECK(training != nullptr, name(),
           "::Step: no step is under way on this StepState, so there is no learning rate. Begin it "
           "before the forward, and keep the result until after Step:\n"
           "  const auto training = optimizer.BeginStep(state, step, learning_rate);");
  LS_CHECK(&training->optimizer() == this, name(),
           "::Step: the step on this StepState was begun by ", training->optimizer().name(),
           ", for whose learning rate and clipping it is: give each optimizer a StepState of its "
           "own, and step it with that");
  LS_CHECK(training->phase() != TrainingStep::Phase::kUpdated, name(),
           "::Step: this step was updated already. Each update has a BeginStep of "
           "its own, in the body of the loop:\n"
           "  const auto training = optimizer.BeginStep(state, step, learning_rate);");
  LS_CHECK(!state.loss_scaling() || training->phase() == TrainingStep::Phase::kClipped, name(),
           "::Step: with loss scaling, a step whose gradients are infinite must be found before "
           "the update: write, after the last Backward,\n"
           "  optim::ClipGradNorm(optimizer.parameters(), max_norm, state);\n"
           "with max_norm = 0 if nothing is to be clipped");
  CheckUnchanged(state);
  std::vector<UpdateCall> calls = Calls(state);
  // Other ranks of a pipeline may update every parameter that has a gradient here.
  const auto has_gradient = [](const auto& p) { return p->grad().defined(); };
  LS_CHECK(std::ranges::any_of(parameters_, has_gradient), name(), ": none of the ",
           parameters_.size(),
           " parameters has a gradient: run Backward before Step, and ZeroGrad after it");
  // Also if it fails halfway: it must not be made twice.
  training->SetPhase(TrainingStep::Phase::kUpdated);
  next_ = number_ + 1;
  any_next_ = false;
  const auto on_host = std::stable_partition(
      calls.begin(), calls.end(), [](const UpdateCall& call) { return !call.needs_host(); });
  for (auto call = calls.begin(); call != on_host; ++call) call->update(call->tensors);
  if (on_host != calls.end()) {
    if (!host_updates_) host_updates_.emplace(state.device(), settings_.offload.buffer_bytes);
    host_updates_->Run({on_host, calls.end()});
  }
  ops::UpdateLossScale(state);
  SeeVersions();
}

// The updates of the parameters that have a gradient: one for all that are updated alike, and one
// for each that has to be gathered.
std::vector<UpdateCall> Optimizer::Calls(const StepState& state) const {
  std::vector<UpdateCall> calls;
  std::map<std::tuple<size_t, size_t, bool>, size_t> alike;  // rule, betas, whether on the host
  for (size_t i = 0; i < trained_.size(); ++i) {
    const Trained& t = trained_[i];
    const std::shared_ptr<Parameter>& p = parameters_[i];
    const Tensor grad = p->grad();
    if (!grad.defined()) continue;
    UpdateTensors tensors = t.tensors;
    tensors.value = ValueOf(*p).Detach();
    tensors.grad = grad.Detach().Contiguous();
    if (!p->decay()) tensors.weight_decay = 0;
    const UpdateRule& rule = settings_.rules[t.rule];
    const Betas& betas = betas_[t.betas];
    UpdateCall call{.elementwise = !rule.whole,
                    .values_on_host = p->on_host(),
                    .states_on_host = settings_.offload.to_host && !t.device.is_cpu()};
    size_t at = calls.size();
    const bool is_elsewhere = p->exchange() && !p->exchange()->Holds(*p);
    if (rule.whole && is_elsewhere) continue;
    if (rule.whole && !p->layout().is_whole()) {
      call.update = [this, &state, &rule, &betas, p](std::span<const UpdateTensors> one) {
        UpdateWhole(*p, one[0], rule, betas, state);
        UpdateAverages(one, state);
      };
    } else {
      call.update = [this, &state, &rule, &betas](std::span<const UpdateTensors> all) {
        rule.update(all, betas, state);
        UpdateAverages(all, state);
      };
      at = alike.try_emplace({t.rule, t.betas, p->on_host()}, at).first->second;
    }
    if (at == calls.size()) calls.push_back(std::move(call));
    if (p->layout().is_whole()) {
      std::ranges::move(SegmentsOf(*p, tensors, rule), std::back_inserter(calls[at].tensors));
    } else {
      calls[at].tensors.push_back(std::move(tensors));
    }
  }
  return calls;
}

void Optimizer::SeeVersions() {
  for (size_t i = 0; i < trained_.size(); ++i) {
    trained_[i].storage = ValueOf(*parameters_[i]).storage();
    trained_[i].version = trained_[i].storage.version();
  }
}

void Optimizer::CheckUnchanged(const StepState& state) const {
  for (size_t i = 0; i < trained_.size(); ++i) {
    const Parameter& p = *parameters_[i];
    const Trained& t = trained_[i];
    const Tensor& value = ValueOf(p);
    LS_CHECK(p.device() == t.device && value.dtype() == t.dtype && value.shape() == t.shape, name(),
             ": the parameter '", p.name(), "' is ", value.Describe(),
             ", but its state was made for ", t.dtype, t.shape, " on ", t.device,
             ": make the optimizer after Materialize");
    LS_CHECK(t.device == state.device(), name(), ": the parameter '", p.name(), "' is on ",
             t.device, ", the StepState on ", state.device());
    LS_CHECK(!t.tensors.master.defined() ||
                 (value.storage().SameBlock(t.storage) && value.storage().version() == t.version),
             name(), ": the ", t.dtype, " parameter '", p.name(),
             "' was written since the optimizer made or updated its f32 original, which would "
             "overwrite it: make the optimizer after Materialize, after weights are loaded, and "
             "after DataParallel; or call LoadState after the weights are loaded");
  }
}

void Optimizer::ZeroGrad() {
  for (const auto& p : parameters_) p->leaf().ZeroGrad();
}

}  // namespace lockstep::optim
