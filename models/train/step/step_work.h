// A training step, as those see it who compute it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/autograd/engine.h"
#include "core/step_state.h"
#include "models/train/step/objective.h"
#include "models/train/step/phase_clock.h"

namespace lockstep::models {

// What it is made of outlives it.
class StepWork {
 public:
  // Returns this rank's next micro-batch, which is `micro_batch` of the step, until the next call.
  using Read = std::function<const data::Batch&(int64_t micro_batch)>;

  // `micro_batches`: of the step, on all ranks together. `observers`: of every backward.
  StepWork(LanguageModel& model, const Objective& objective, StepState& state,
           int64_t micro_batches, Read read, PhaseClock& clock,
           std::vector<BackwardObserver*> observers = {});

  // The rows of the next micro-batch (Objective::RowsOf); valid until the next call.
  const data::Batch& Next(int64_t micro_batch);
  // The gradient of each micro-batch's loss, before the loss scale. Known once one was read, and
  // the same for all of a step.
  double root() const { return 1.0 / static_cast<double>(divisor_); }

  // Forward and backward of a micro-batch. Returns its measures.
  Tensor Compute(const data::Batch& rows, double root);
  // The same of tokens on the device, i32 [B, T], in the scope of their documents. `root`: a
  // scalar.
  Tensor Compute(const Tensor& ids, const Tensor& targets, const Tensor& root);

  // Objective::DivisorOf the step, and the tokens that this rank has read.
  int64_t divisor() const { return divisor_; }
  int64_t tokens() const { return tokens_; }
  StepState& state() const { return state_; }
  PhaseClock& clock() const { return clock_; }
  const std::vector<BackwardObserver*>& observers() const { return backward_.observers; }

 private:
  LanguageModel& model_;
  const Objective& objective_;
  StepState& state_;
  const int64_t micro_batches_;
  const Read read_;
  PhaseClock& clock_;
  BackwardOptions backward_;
  const DType wide_;  // of root gradients
  data::Batch made_;
  int64_t divisor_ = 1, tokens_ = 0;
};

}  // namespace lockstep::models
