#include "models/train/step/step_work.h"

#include <utility>

#include "kernels/loss_scale/loss_scale.h"
#include "models/train/step/batch_tensor.h"

namespace lockstep::models {

StepWork::StepWork(LanguageModel& model, const Objective& objective, StepState& state,
                   int64_t micro_batches, Read read, PhaseClock& clock,
                   std::vector<BackwardObserver*> observers)
    : model_(model),
      objective_(objective),
      state_(state),
      micro_batches_(micro_batches),
      read_(std::move(read)),
      clock_(clock),
      backward_{.observers = std::move(observers)},
      wide_(AccumulationDType(model.Parameters().at(0)->value().dtype())) {}

const data::Batch& StepWork::Next(int64_t micro_batch) {
  clock_.Enter(&StepTimes::data_ms);
  const data::Batch& batch = read_(micro_batch);
  divisor_ = objective_.DivisorOf(batch, micro_batches_);
  const data::Batch& rows = objective_.RowsOf(batch, &made_);
  tokens_ += rows.rows * rows.cols;
  return rows;
}

Tensor StepWork::Compute(const data::Batch& rows, double root) {
  const Device device = state_.device();
  const nn::DocumentScope documents(DocumentsOf(rows, device));
  clock_.Enter(&StepTimes::forward_ms);
  const LossSums sums = objective_(model_, rows, device);
  clock_.Enter(&StepTimes::backward_ms);
  Backward(sums.loss, ops::ScaleRoot(Tensor::Full({}, root, wide_, device), state_), backward_);
  return sums.measures;
}

Tensor StepWork::Compute(const Tensor& ids, const Tensor& targets, const Tensor& root) {
  clock_.Enter(&StepTimes::forward_ms);
  const Tensor sum = model_.Loss(ids, targets);
  clock_.Enter(&StepTimes::backward_ms);
  Backward(sum, ops::ScaleRoot(root, state_), backward_);
  return sum.Detach();
}

}  // namespace lockstep::models
