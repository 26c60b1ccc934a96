// A step of a user's loop, and what it must not do.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "core/step_state.h"

namespace lockstep::optim {

class Optimizer;

// A step, from BeginStep until this goes out of scope: random operations draw, batch norm uses the
// batch (but not where NoGrad is on, so a model may be evaluated within), and the optimizer may
// update. On the thread that began it.
//
// It watches over each Backward within the step, which throws ArgumentError before its first node
// - if a parameter that no optimizer updates would get a gradient, which would add up unseen;
// - if a parameter of this step's optimizer would get one after ClipGradNorm, or where the root
//   gradient was not multiplied by the loss scale.
class [[nodiscard]] TrainingStep : public StepWatch {
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
  // Not after the optimizer's destruction.
  const Optimizer& optimizer() const { return optimizer_; }

  // How far the step has come.
  enum class Phase { kGradients, kClipped, kUpdated };
  Phase phase() const { return phase_; }
  // ClipGradNorm and Optimizer::Step set it; a capture of the update that fails sets it back.
  void SetPhase(Phase phase) const { phase_ = phase; }

 private:
  friend class Optimizer;
  TrainingStep(const StepState& state, const Optimizer& optimizer);
  void CheckBackward(std::span<const std::shared_ptr<Leaf>> leaves) const override;

  StepState state_;
  TrainingScope scope_;
  const Optimizer& optimizer_;
  mutable Phase phase_ = Phase::kGradients;
  const uint64_t id_;
};

}  // namespace lockstep::optim
