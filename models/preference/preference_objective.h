// Preference tuning as what a training step minimises.
#pragma once

#include <cstdint>
#include <vector>

#include "data/batch.h"
#include "models/gpt/language_model.h"
#include "models/preference/dpo.h"
#include "models/preference/preference_metrics.h"

namespace lockstep::models {

// Splits windows of pairs, whose first half is the chosen answer with its prompt and whose second
// half is the rejected one (data/conversations/preference_dataset.h): rows [2 B, T], the chosen one
// of a pair first, without columns that only fill rows up (but T is a multiple of 8, unless half a
// window is none).
data::Batch SplitPairs(const data::Batch& windows);

// The loss of pairs of answers, DpoLoss, whose reference is the same model without its adapters.
// Both see the same rows; the reference comes first, without gradients and without dropout. There
// is one backward: for its output head, the model's graph keeps gradients of rows that are weighted
// once the losses are known (nn::RowLossScope), and never the logits of all rows.
class PreferenceObjective {
 public:
  // Throws ArgumentError if the model has no adapters (nn::AddLora), if anything else in it is
  // trained, which would change the reference as well, and for options that are out of range.
  PreferenceObjective(LanguageModel& model, const DpoOptions& options);

  struct Sums {
    Tensor loss;      // of all pairs, a scalar: f64 for an f64 model, else f32
    Tensor measures;  // [5], without gradient: ToMetrics
  };
  // `rows` as SplitPairs gives them; pairs without targets do not count. On the rows' device.
  Sums operator()(LanguageModel& model, const data::Batch& rows, Device device) const;

  static constexpr int kMeasures = 5;
  // The means over pairs of measures, or of sums of them.
  static PreferenceMetrics ToMetrics(const std::vector<double>& measures);

 private:
  DpoOptions options_;
};

}  // namespace lockstep::models
