// What all optimizers share: groups of parameters, a step, and state with names.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/parameter.h"
#include "core/step_state.h"
#include "kernels/update.h"
#include "optim/host_updates.h"
#include "optim/training_step.h"

namespace lockstep::optim {

// Parameters with settings of their own, as PyTorch's param_groups. What is empty is as in the
// optimizer's options.
struct ParameterGroup {
  std::vector<std::shared_ptr<Parameter>> parameters;
  double lr_factor = 1;                  // multiplies the learning rate of each step
  std::optional<double> weight_decay{};  // of those with decay(); the others have none
  std::optional<Betas> betas{};          // of optimizers that have betas
};

// An optimizer's arithmetic, for all of its parameters or some.
struct UpdateRule {
  // What is kept for each parameter, as "<parameter>.<name>" in NamedState: tensors of its shape,
  // f32 or as the optimizer's state_dtype says (f64 for f64 parameters), zero at first.
  std::vector<std::string> states;
  // Updates parameters that have the same betas, and all have a gradient.
  std::function<void(std::span<const UpdateTensors>, const Betas&, const StepState&)> update;
  // Which parameters it is for, of those that no rule before it takes; where empty, all.
  std::function<bool(const Parameter&)> takes = nullptr;
  // Whether it wants whole tensors where ranks have parts of a parameter: these are then gathered,
  // updated on every rank, and cut again, one parameter at a time.
  bool whole = false;
  // Of such a rule: the numbers of rows, which add up to all, that are updated as tensors of their
  // own, such as queries, keys and values of a fused matrix. Where empty, a tensor is one.
  std::function<std::vector<int64_t>(const Parameter&)> segments = nullptr;
};

// For parameters on a GPU: keeps the optimizer's state (moments, f32 originals) in page-locked host
// memory instead of the GPU's. The bits, the names of the state and checkpoints are the same.
struct StateOffload {
  bool to_host = false;
  // The most bytes that each of two buffers on the device takes, only within Step: an update is
  // made in pieces of that size, while the next piece arrives and the one before returns. Muon's
  // matrices are not cut. Also used, with to_host or without, for weights on the host
  // (nn/offload_weights.h).
  int64_t buffer_bytes = int64_t{32} << 20;
};

struct StepOptions {
  // The index, within the step, of the first sample of this rank's first micro-batch: dropout draws
  // by it, so that no two samples of a step share a mask. Where several ranks share the step's
  // samples it must be given.
  std::optional<int64_t> first_sample;
};

// The loop of a user:
//   const auto training = adamw.BeginStep(state, step, schedule(step));
//   ... forward and Backward, once per micro-batch ...
//   ClipGradNorm(adamw.parameters(), 1.0, state);
//   adamw.Step(state);
//   adamw.ZeroGrad();
// A forgotten BeginStep or ZeroGrad, a second update, or another optimizer's state throws, and says
// what to write. Results depend neither on the order of the parameters, their division into groups
// of equal settings, nor the number of threads.
//
// The state is on the parameters' devices, or on the host (StateOffload): what the rules keep, and
// for 16-bit parameters with master_weights "<parameter>.master", the f32 original, at first the
// value. bf16 parameters without an original, and bf16 state, are rounded stochastically
// (kernels/stochastic_rounding.h), by numbers that depend on the StepState's seed and step and the
// parameter's name: the bits do not depend on how parameters are sharded. With ema > 0 also
// "<parameter>.ema", an average of the original, f32 or f64, at first the original: each update of
// the parameter is followed by one of it (kernels/ema/ema.h).
//
// f16 parameters need loss scaling, which bf16 and f32 ones may have. max_norm = 0 clips nothing:
//   state.EnableLossScaling();                           // once
//   Backward(loss, training.Root());                     // in each step
//   ClipGradNorm(adamw.parameters(), max_norm, state);   // finds infinite gradients
//   adamw.Step(state);                                   // skips them, and adapts the scale
// What is forgotten of it throws. A checkpoint holds state.Read().loss_scale, too.
class Optimizer {
 public:
  virtual ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  const char* name() const { return settings_.name; }
  // The parameters that were trainable when the optimizer was made, group by group.
  const std::vector<std::shared_ptr<Parameter>>& parameters() const { return parameters_; }

  // Begins a step on the state, before its first forward, on the current stream. Keep the result
  // until after Step. Throws ArgumentError
  // - if a step is under way on this state, of this optimizer or of another, which needs a state of
  //   its own; or if the step or learning rate cannot be;
  // - if the step is not above that of the last update, or is not 0 before the first update of an
  //   optimizer that keeps state, unless LoadState came in between;
  // - if no parameter of a group was trainable when the optimizer was made, or one is now that was
  //   not then;
  // - if a parameter has changed device, dtype or shape since, or is not on the state's device;
  // - if a 16-bit parameter was written by others than its f32 original is updated here;
  // - if there are gradients already, which ZeroGrad has not emptied;
  // - if a parameter is f16, and the state has no loss scaling.
  // Without loss scaling, a warning on stderr says, some steps late, that an update was left out
  // since a gradient was not finite, unless the loop reads the state (StepValues::found_inf).
  TrainingStep BeginStep(StepState& state, int64_t step, double lr,
                         const StepOptions& options = {});
  // Updates the parameters that have a gradient, in place, unless the state's found_inf is set:
  // then nothing changes. One without a gradient is left alone. Learning rate and factors are read
  // on the device. Throws ArgumentError if no step of this optimizer is under way on the state, or
  // it was updated already; if no parameter has a gradient; if one has changed since BeginStep as
  // BeginStep would refuse it; or with loss scaling, if ClipGradNorm was not called, which finds
  // infinite gradients.
  void Step(const StepState& state);
  // Empties the gradients.
  void ZeroGrad();

  // What updates are made to, in the order of parameters(): the f32 originals of 16-bit parameters,
  // where there are some, else the values. The tensors share memory with those.
  std::vector<Tensor> Originals() const;
  // Writes these numbers there, between steps, and rounds 16-bit parameters from them, to the
  // nearest. What is kept for each parameter, such as moments, stays. Throws ArgumentError for
  // other shapes.
  void SetOriginals(std::span<const Tensor> values);
  // Runs f, between steps, while the parameters have the values of their averages, rounded to the
  // nearest; then they have their own bits again. Takes memory for a copy of the values. Ranks that
  // have parts of parameters call it together. Throws ArgumentError without averages.
  void WithAverages(const std::function<void()>& f);
  bool keeps_averages() const { return settings_.ema > 0; }

  // ---- Saving and loading, in optimizer_state.cc ----
  // What a checkpoint must hold in addition to the weights and the step's number: tensors that
  // share the optimizer's memory, named "<parameter>.<what>", in the order of the rules and
  // parameters. Groups are not part of it. With StateOffload they are tensors on the CPU, and this
  // call waits for the updates submitted to the current stream: call it again after each Step.
  NamedTensors NamedState() const;
  // The same, with the parameter that each tensor belongs to. A tensor has the shape of this rank's
  // part of its parameter.
  void ForEachState(
      const std::function<void(const std::string& name, const Parameter&, const Tensor&)>& f) const;
  // Overwrites the state by tensors of the same names, shapes and dtypes, in any order and on any
  // device; for a parameter of which this rank has a part, tensors of the whole will do. Throws
  // InputError naming the tensor if one is missing, unknown, given twice or different, or if an f32
  // original is not that of the weights; then nothing was changed. Averages may all be missing, and
  // then begin with the originals, and are left out where the optimizer keeps none.
  void LoadState(const NamedTensors& state);
  // Throws what LoadState would once the parameters have the values of `value_of`.
  void CheckState(const NamedTensors& state,
                  const std::function<Tensor(const Parameter&)>& value_of) const;

 protected:
  // What a kind of optimizer consists of.
  struct Settings {
    const char* name;
    std::vector<UpdateRule> rules;
    double weight_decay;
    bool master_weights;         // whether 16-bit parameters have f32 originals
    DType state_dtype;           // f32 or bf16
    std::optional<Betas> betas;  // where it has some; AdamW's bias corrections follow from them
    StateOffload offload;
    double ema = 0;  // the decay of averages of the weights; 0: none are kept
  };
  // Keeps the trainable ones among the parameters. They have names and memory: make the optimizer
  // after Module::Materialize, and after weights were loaded. Throws ArgumentError for a null
  // parameter, one in two groups, two of one name, and settings that are out of range, not finite
  // or without effect.
  Optimizer(std::vector<ParameterGroup> groups, Settings settings);

 private:
  // A parameter with what is kept of it.
  struct Trained {
    UpdateTensors tensors;       // value and grad only within Step
    size_t rule = 0, betas = 0;  // indices
    // The parameter's properties when the optimizer was made.
    Device device;
    DType dtype;
    Shape shape;
    // And when the optimizer was made, or last wrote it.
    Storage storage;
    uint64_t version = 0;
  };
  // What is given of each tensor of the state; throws as LoadState.
  std::map<std::string, Tensor> Checked(
      const NamedTensors& state, const std::function<Tensor(const Parameter&)>& value_of) const;
  void CheckOriginals(const std::map<std::string, Tensor>& given,
                      const std::function<Tensor(const Parameter&)>& value_of) const;
  void AddGroup(const ParameterGroup& group, const std::string& of_group);
  Tensor NewState(const Parameter& p, DType dtype) const;
  std::vector<UpdateCall> Calls(const StepState& state) const;
  void UpdateAverages(std::span<const UpdateTensors> tensors, const StepState& state) const;
  // A parameter's value as the optimizer finds it, without waiting for updates.
  static const Tensor& ValueOf(const Parameter& p) { return p.on_host() ? p.part() : p.value(); }
  void SeeVersions();
  void CheckUnchanged(const StepState& state) const;
  void CheckNumber(int64_t step) const;
  void WarnOfSkipped(const StepState& state);

  Settings settings_;
  std::vector<Betas> betas_;  // the different ones
  std::vector<std::shared_ptr<Parameter>> parameters_, frozen_;
  std::vector<Trained> trained_;             // as parameters_
  std::string nothing_to_train_;             // why, if a group has no trainable parameter
  std::optional<StepState> begun_;           // the step that BeginStep began last
  int64_t number_ = 0, next_ = 0;            // of the step begun last; the least of the next
  bool any_next_ = false;                    // after LoadState
  std::vector<HostRead> unseen_;             // states after updates that the loop has not looked at
  int64_t skipped_ = 0;                      // of these
  std::optional<HostUpdates> host_updates_;  // once needed
};

// Throws ArgumentError unless low <= value < high.
void CheckRange(const char* optimizer, const std::string& name, double value, double low,
                double high);
// Throws ArgumentError unless 0 <= value, finite.
void CheckNotNegative(const char* optimizer, const std::string& name, double value);

}  // namespace lockstep::optim
