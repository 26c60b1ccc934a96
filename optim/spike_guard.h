// Steps whose loss or gradient norm is far outside its recent range.
#pragma once

#include <cstddef>
#include <vector>

namespace lockstep::optim {

// Of the newest steps, oldest first: all that a SpikeGuard knows.
struct SpikeHistory {
  std::vector<double> losses, norms;
  bool operator==(const SpikeHistory&) const = default;
};

// Leaving out the update of such a step keeps one bad batch from undoing hours of training (OLMo
// et al., "2 OLMo 2 Furious", 2025, do so at 6 standard deviations of the last 128 steps; here, the
// range is the median and the median distance from it, which outliers do not move):
//   if (guard.IsSpike(loss)) state.SetNormLimit(-1);        // the loss of the step, on all ranks
//   else state.SetNormLimit(guard.NormLimit());             // before ClipGradNorm
//   ...
//   guard.Add(loss, state.Read().grad_norm);                // after the update
// A pure function of these numbers: ranks that have the same ones decide alike.
class SpikeGuard {
 public:
  static constexpr size_t kWindow = 128;  // steps that are looked back at

  // A value is a spike if it is above the median by more than `deviations` standard deviations
  // (estimated by 1.4826 times the median distance, but at least 1% of the median), once half a
  // window is known. Throws ArgumentError unless deviations > 0 and the history is one.
  explicit SpikeGuard(double deviations, SpikeHistory history = {});

  bool IsSpike(double loss) const;
  // The largest norm that is no spike; infinity as long as too little is known.
  float NormLimit() const;

  // Of a step, whether or not it was a spike: if values stay at another level, that becomes the
  // range after half a window. Values that are not finite are left out.
  void Add(double loss, double norm);
  const SpikeHistory& history() const { return history_; }

 private:
  double LimitOf(std::vector<double> values) const;

  const double deviations_;
  SpikeHistory history_;
};

}  // namespace lockstep::optim
