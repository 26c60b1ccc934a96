#include "models/train/step/step_graphs.h"

#include <utility>

#include "core/allocator.h"
#include "core/autograd/grad_hooks.h"
#include "models/train/step/batch_tensor.h"
#include "optim/training_step.h"

namespace lockstep::models {

StepGraphs::StepGraphs(StepState& state, std::vector<std::shared_ptr<Parameter>> parameters,
                       const Options& options)
    : state_(state),
      parameters_(std::move(parameters)),
      options_(options),
      ids_(static_cast<size_t>(options.micro_steps)),
      targets_(static_cast<size_t>(options.micro_steps)),
      documents_(static_cast<size_t>(options.micro_steps)),
      first_sample_of_(static_cast<size_t>(options.micro_steps)),
      root_(Tensor::Zeros({}, DType::kF32, state.device())),
      losses_(Tensor::Zeros({options.micro_steps}, DType::kF32, state.device())) {}

void StepGraphs::Load(int64_t i, const data::Batch& batch) {
  const Shape shape{batch.rows, batch.cols};
  const auto at = static_cast<size_t>(i);
  const auto load = [&](Tensor& to, const Tensor& values) {
    if (to.defined() && !(to.shape() == shape)) {
      GiveUp(StrCat("a batch has shape ", shape, ", earlier ones had ", to.shape()));
      to = Tensor();
    }
    if (!to.defined()) to = Tensor::Empty(shape, DType::kI32, state_.device());
    to.CopyFrom(values);
  };
  load(ids_[at], ToTensor(batch.inputs, batch, kCpu));
  load(targets_[at], ToTensor(batch.targets, batch, kCpu));
  const nn::Documents documents = DocumentsOf(batch, kCpu);
  if (gradients_.defined() && documents.defined() != documents_[at].defined()) {
    GiveUp("only some batches have document masks");
  }
  if (documents.defined()) {
    load(documents_[at].first_key, documents.first_key);
    load(documents_[at].positions, documents.positions);
  } else {
    documents_[at] = {};
  }
  if (std::exchange(first_sample_of_[at], i * batch.rows) != i * batch.rows) {
    first_samples_ = Tensor();
  }
}

// Everything that is submitted here is part of the graph.
void StepGraphs::RunMicroSteps() {
  for (size_t i = 0; i < ids_.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    state_.SetFirstSample(first_samples_.Slice(0, at, at + 1));
    const nn::DocumentScope documents(documents_[i]);
    const Tensor sum = options_.micro_step(ids_[i], targets_[i], root_);
    losses_.Slice(0, at, at + 1).CopyFrom(sum.Detach().View({1}));
  }
}

bool StepGraphs::ParametersMoved() const {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i]->part().raw_data() != values_[i]) return true;
  }
  return false;
}

void StepGraphs::GiveUp(const std::string& why) {
  gradients_ = cuda::Graph();
  update_ = cuda::Graph();
  grads_.clear();
  space_.reset();  // its memory is for eager steps now
  if (!std::exchange(given_up_, true) && options_.say) {
    options_.say(StrCat("training continues without CUDA graphs: ", why));
  }
}

// Whether this step runs as a graph; captures it if necessary.
bool StepGraphs::Ready(bool eager) {
  if (eager || given_up_ || !std::exchange(warm_, true)) return false;
  for (const auto& p : parameters_) {
    if (p->leaf().observers().empty() && !p->leaf().has_hooks()) continue;
    GiveUp("gradients have observers or hooks");
    return false;
  }
  if (gradients_.defined() && !ParametersMoved()) return true;
  if (const std::string why = cuda::GraphSpace::WhyNot(state_.device()); !why.empty()) {
    GiveUp(why);
    return false;
  }
  try {
    Capture();
  } catch (const Error& error) {
    for (const auto& p : parameters_) p->leaf().ZeroGrad();
    if (const auto* const training = optim::TrainingStep::On(state_)) {
      training->SetPhase(optim::TrainingStep::Phase::kGradients);
    }
    GiveUp(error.what());
    return false;
  }
  return true;
}

void StepGraphs::Capture() {
  gradients_ = cuda::Graph();
  update_ = cuda::Graph();
  grads_.clear();
  // The memory of eager steps is free now, and graphs have their own.
  GetAllocator(state_.device()).Trim();
  if (!space_) space_.emplace(state_.device());
  cuda::Graph gradients = space_->Capture([&] {
    const RefuseGradHooks results_have_none;
    RunMicroSteps();
  });
  for (const auto& p : parameters_) grads_.push_back(p->grad());
  update_ = space_->Capture(options_.update);
  gradients_ = std::move(gradients);
  values_.clear();
  for (const auto& p : parameters_) values_.push_back(p->part().raw_data());
}

std::vector<HostRead> StepGraphs::Gradients(double root_gradient, bool eager) {
  root_.Fill(root_gradient);
  if (!first_samples_.defined()) {
    first_samples_ = Tensor::FromVector(first_sample_of_, {options_.micro_steps}, state_.device());
  }
  replaying_ = Ready(eager);
  if (replaying_) {
    gradients_.Launch(CurrentStream(state_.device()));
    for (size_t i = 0; i < parameters_.size(); ++i) {
      if (grads_[i].defined()) parameters_[i]->leaf().ShareGrad(grads_[i]);
    }
    ++replays_;
  } else {
    RunMicroSteps();
  }
  std::vector<HostRead> losses;
  for (int64_t i = 0; i < options_.micro_steps; ++i) {
    losses.emplace_back(losses_.Slice(0, i, i + 1));
  }
  return losses;
}

std::vector<HostRead> StepGraphs::Gradients(StepWork& work) {
  for (int64_t i = 0; i < options_.micro_steps; ++i) Load(i, work.Next(i));
  return Gradients(work.root(), /*eager=*/!work.observers().empty());
}

void StepGraphs::Update() {
  if (replaying_) {
    update_.Launch(CurrentStream(state_.device()));
  } else {
    options_.update();
  }
}

}  // namespace lockstep::models
