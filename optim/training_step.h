// A step of a user's loop, and what it must not do.
#pragma once

#include <cstdint>

#include "core/autograd/leaf.h"
#include "core/step_state.h"

namespace lockstep::optim {

class Optimizer;

// A step, from BeginStep until this goes out of scope: random operations draw, batch norm uses the
// batch (but not where NoGrad is on, so a model may be evaluated within), and the optimizer may
// update. On the thread that began it.
//
// It observes each Backward within the step. That throws ArgumentError, before its first node,
// - if it would give a gradient to a parameter that no optimizer updates, and that would thus add
//   up unseen;
// - if it would add to a gradient of this step's optimizer that has been clipped already, or whose
//   root is not multiplied by the loss scale.
class [[nodiscard]] TrainingStep : private BackwardObserver {
 public:
  ~TrainingStep() override;
  TrainingStep(const TrainingStep&) = delete;
  TrainingStep& operator=(const TrainingStep&) = delete;

  // The step that is under way on a state; null if there is none.
  static const TrainingStep* On(const StepState& state);

  // Before the forward of each further micro-batch: the index of its first sample within the step.
  void SetFirstSample(int64_t index) const { StepState(state_).SetFirstSample(index); }

  // The gradient of the loss with respect to itself, times the loss scale where the state has one:
  // a scalar of f32 or f64 on its device, for one Backward.
  //   Backward(loss, training.Root());
  // For other tensors there is ops::ScaleRoot (kernels/loss_scale).
  Tensor Root(double gradient = 1, DType dtype = DType::kF32) const;

  // Tells steps apart.
  uint64_t id() const { return id_; }
  const Optimizer& optimizer() const { return optimizer_; }

  // How far the step has come.
  enum class Phase { kGradients, kClipped, kUpdated };
  Phase phase() const { return phase_; }
  // Steps set it themselves, except that a capture of the update that failed sets it back.
  void SetPhase(Phase phase) const { phase_ = phase; }

 private:
  friend class Optimizer;
  TrainingStep(const StepState& state, const Optimizer& optimizer);
  void OnBegin(const BackwardPlan& plan) override;

  StepState state_;
  TrainingScope scope_;
  const Optimizer& optimizer_;
  mutable Phase phase_ = Phase::kGradients;
  const uint64_t id_;
};

}  // namespace lockstep::optim
