// Preference tuning as what a training step minimises.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "models/preference/dpo.h"
#include "models/train/step/objective.h"

namespace lockstep::models {

// Splits windows of pairs, whose first half is the chosen answer with its prompt and whose second
// half is the rejected one (data/conversations/preference_dataset.h): rows [2 B, T], the chosen one
// of a pair first, without columns that only fill rows up (but T is a multiple of 8, unless half a
// window is none). Windows without values, as on the meta device, keep all columns.
data::Batch SplitPairs(const data::Batch& windows);

// The loss of pairs of answers, DpoLoss, whose reference is the same model without its adapters.
// Both see the same rows; the reference comes first, without gradients and without dropout. There
// is one backward: for its output head, the model's graph keeps gradients of rows that are weighted
// once the losses are known (nn::RowLossScope), and never the logits of all rows.
class PreferenceObjective : public Objective {
 public:
  // Throws ArgumentError if the model has no adapters (nn::AddLora), if anything else in it is
  // trained, which would change the reference as well, and for options that are out of range.
  PreferenceObjective(LanguageModel& model, const DpoOptions& options);

  // SplitPairs.
  const data::Batch& RowsOf(const data::Batch& windows, data::Batch* made) const override {
    return *made = SplitPairs(windows);
  }
  // Pairs without targets do not count.
  LossSums operator()(LanguageModel& model, const data::Batch& rows, Device device) const override;
  int64_t measures() const override { return 5; }
  int64_t DivisorOf(const data::Batch& windows, int64_t micro_batches) const override {
    return windows.rows * micro_batches;
  }
  double MeanOf(const std::vector<double>& sums, const data::EvalBatches&) const override {
    return ToMetrics(sums).loss;
  }
  std::optional<PreferenceMetrics> MetricsOf(const std::vector<double>& sums) const override {
    return ToMetrics(sums);
  }
  bool is_model_loss() const override { return false; }  // pairs differ in length

  // The means over pairs of measures, or of sums of them.
  static PreferenceMetrics ToMetrics(const std::vector<double>& measures);

 private:
  DpoOptions options_;
};

}  // namespace lockstep::models
