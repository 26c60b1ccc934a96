// What all optimizers share: parameters, a step, and state with names.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/parameter.h"
#include "core/step_state.h"

namespace lockstep::optim {

struct StepOptions {
  // The index, within the step, of the first sample of this rank's first micro-batch: dropout draws
  // by it, so that no two samples of a step share a mask. Where several ranks share the step's
  // samples it must be said.
  std::optional<int64_t> first_sample;
  double loss_scale = 1;  // what the root gradient was multiplied by
};

// A step, from BeginStep until this goes out of scope: random operations draw, batch norm uses the
// batch (but not where NoGrad is on, so a model may be evaluated within), and the optimizer may
// update. On the thread that began it.
class [[nodiscard]] TrainingStep {
 public:
  ~TrainingStep() { state_.SetUpdater(nullptr); }
  TrainingStep(const TrainingStep&) = delete;
  TrainingStep& operator=(const TrainingStep&) = delete;

  // Before the forward of each further micro-batch: the index of its first sample within the step.
  void SetFirstSample(int64_t index) const { StepState(state_).SetFirstSample(index); }

 private:
  friend class Optimizer;
  explicit TrainingStep(const StepState& state) : state_(state), scope_(state) {}

  StepState state_;
  TrainingScope scope_;
};

// The loop of a user:
//   const auto training = adamw.BeginStep(state, step, schedule(step));
//   ... forward and Backward, once per micro-batch ...
//   ClipGradNorm(adamw.parameters(), 1.0, state);
//   adamw.Step(state);
//   adamw.ZeroGrad();
// A forgotten BeginStep or ZeroGrad, a second update, or another optimizer's state throws, and says
// what to write.
class Optimizer : public StepUpdater {
 public:
  // Keeps the trainable ones among the parameters. They have names and memory: make the optimizer
  // after Module::Materialize, and after weights were loaded. Throws ArgumentError for a null
  // parameter, or if two have one name.
  explicit Optimizer(std::vector<std::shared_ptr<Parameter>> parameters);
  ~Optimizer() override;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  const std::vector<std::shared_ptr<Parameter>>& parameters() const override { return parameters_; }

  // Begins a step on the state, before its first forward, on the current stream. Keep the result
  // until after Step. Throws ArgumentError
  // - if a step is under way on this state, of this optimizer or of another, which needs a state of
  //   its own; or if the step, learning rate or loss scale cannot be;
  // - if no parameter was trainable when the optimizer was made, or one is now that was not then;
  // - if a parameter has changed dtype since, or a 16-bit one was written by others than its f32
  //   original is updated here;
  // - if there are gradients already, which ZeroGrad has not emptied.
  TrainingStep BeginStep(StepState& state, int64_t step, double lr,
                         const StepOptions& options = {});
  // Updates the parameters that have a gradient, in place, unless the state's found_inf is set:
  // then nothing changes. Learning rate and factors are read on the device. Throws ArgumentError if
  // no step of this optimizer is under way on the state, or it was updated already; if no parameter
  // has a gradient; or if one has changed device, dtype or shape since the optimizer was made.
  void Step(const StepState& state);
  // Empties the gradients.
  void ZeroGrad();

  // What a checkpoint must hold besides the weights and the step's number: tensors that share the
  // optimizer's memory, named "<parameter>.<what>", in the order of the parameters.
  virtual NamedTensors NamedState() const = 0;
  // Overwrites the state by tensors of the same names, shapes and dtypes, in any order and on any
  // device. Throws InputError naming the tensor if one is missing, unknown, given twice or
  // different, or if an f32 original is not that of the weights; then nothing was changed.
  void LoadState(const NamedTensors& state);

 protected:
  struct Betas {
    double first = 0, second = 0;  // what bias corrections follow from
  };
  virtual Betas betas() const { return {}; }
  // Whether 16-bit parameters have f32 originals.
  virtual bool keeps_masters() const = 0;
  // Step, after its checks.
  virtual void Update(const StepState& state) = 0;

 private:
  // What a parameter was when the optimizer was made, or last wrote it.
  struct Seen {
    DType dtype;
    Storage storage;
    uint64_t version;
  };
  void See();
  void CheckUnchanged() const;

  std::vector<std::shared_ptr<Parameter>> parameters_, frozen_;
  std::vector<Seen> seen_;          // as parameters_
  std::optional<StepState> begun_;  // the step that BeginStep began last
};

}  // namespace lockstep::optim
