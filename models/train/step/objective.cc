#include "models/train/step/objective.h"

#include "models/train/step/batch_tensor.h"

namespace lockstep::models {

LossSums LanguageObjective::operator()(LanguageModel& model, const data::Batch& rows,
                                       Device device) const {
  const Tensor loss =
      model.Loss(ToTensor(rows.inputs, rows, device), ToTensor(rows.targets, rows, device));
  return {loss, loss.Detach()};
}

}  // namespace lockstep::models
