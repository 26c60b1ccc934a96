// What all optimizers share: parameters, a step, and state with names.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/parameter.h"
#include "core/step_state.h"

namespace lockstep::optim {

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

// The loop of a user:
//   adamw.BeginStep(state, step, schedule(step));
//   ... forward and Backward, once per micro-batch ...
//   ClipGradNorm(adamw.parameters(), 1.0, state);
//   adamw.Step(state);
//   adamw.ZeroGrad();
class Optimizer {
 public:
  // Keeps the trainable ones among the parameters. They have names and memory: make the optimizer
  // after Module::Materialize, and after weights were loaded. Throws ArgumentError for a null
  // parameter, or if two have one name.
  explicit Optimizer(std::vector<std::shared_ptr<Parameter>> parameters);
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  const std::vector<std::shared_ptr<Parameter>>& parameters() const { return parameters_; }

  // StepState::Begin with what this optimizer needs. Before the step's first forward.
  virtual void BeginStep(StepState& state, int64_t step, double lr,
                         double loss_scale = 1) const = 0;
  // Updates the parameters that have a gradient, in place, unless the state's found_inf is set:
  // then nothing changes. Learning rate and factors are read on the device. Throws ArgumentError if
  // no parameter has a gradient.
  virtual void Step(const StepState& state) = 0;
  // Empties the gradients.
  void ZeroGrad();

  // What a checkpoint must hold besides the weights and the step's number: tensors that share the
  // optimizer's memory, named "<parameter>.<what>", in the order of the parameters.
  virtual NamedTensors NamedState() const = 0;
  // Overwrites the state by tensors of the same names, shapes and dtypes, in any order and on any
  // device. Throws InputError naming the tensor if one is missing, unknown, given twice or
  // different; then nothing was changed.
  void LoadState(const NamedTensors& state);

 private:
  std::vector<std::shared_ptr<Parameter>> parameters_;
};

}  // namespace lockstep::optim
