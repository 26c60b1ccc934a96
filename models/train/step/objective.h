// What a training step minimises.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/tensor.h"
#include "data/batch.h"
#include "data/evaluation.h"
#include "models/gpt/language_model.h"
#include "models/preference/preference_metrics.h"

namespace lockstep::models {

// Of the rows of a micro-batch.
struct LossSums {
  Tensor loss;      // a scalar: f64 for an f64 model, else f32
  Tensor measures;  // Objective::measures() sums, without gradient, of which the first is the loss
};

// A step minimises a mean of losses, which are summed over each of its micro-batches.
class Objective {
 public:
  virtual ~Objective() = default;

  // The rows that the model sees of a loader's batch: the batch itself, or what is made of it in
  // `made`.
  virtual const data::Batch& RowsOf(const data::Batch& batch, data::Batch* made) const = 0;
  // `rows`: as RowsOf gives them, in the scope of their documents. On the meta device they may be
  // without values.
  virtual LossSums operator()(LanguageModel& model, const data::Batch& rows,
                              Device device) const = 0;
  virtual int64_t measures() const = 0;

  // What the loss of a step of this many such batches, on all ranks together, is divided by.
  virtual int64_t DivisorOf(const data::Batch& batch, int64_t micro_batches) const = 0;
  // The loss of an evaluation of these batches, whose measures add up to `sums`.
  virtual double MeanOf(const std::vector<double>& sums,
                        const data::EvalBatches& batches) const = 0;
  // Of sums of measures; none unless they are those of preferences.
  virtual std::optional<PreferenceMetrics> MetricsOf(const std::vector<double>& sums) const = 0;

  // Whether it is model.Loss(ids, targets) of batches that all have the same shape. If so, steps
  // can be CUDA graphs, which call that and not this operator.
  virtual bool is_model_loss() const = 0;
};

// The mean cross entropy with the next token, over all targets of a step.
class LanguageObjective : public Objective {
 public:
  const data::Batch& RowsOf(const data::Batch& batch, data::Batch*) const override { return batch; }
  LossSums operator()(LanguageModel& model, const data::Batch& rows, Device device) const override;
  int64_t measures() const override { return 1; }
  // Micro-batches of masked data have unequal numbers of targets, so the divisor is that of the
  // whole step, known before the first backward.
  int64_t DivisorOf(const data::Batch& batch, int64_t) const override { return batch.step_targets; }
  double MeanOf(const std::vector<double>& sums, const data::EvalBatches& batches) const override {
    return sums[0] / static_cast<double>(batches.num_targets());
  }
  std::optional<PreferenceMetrics> MetricsOf(const std::vector<double>&) const override {
    return {};
  }
  bool is_model_loss() const override { return true; }
};
inline const LanguageObjective kNextToken;

}  // namespace lockstep::models
