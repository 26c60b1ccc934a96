// The curves of a run, in memory that does not grow with its length.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "models/report/metrics.h"

namespace lockstep::models {

// A value per step, thinned: once there are more than kMaxBuckets buckets, neighbouring steps share
// one. What a bucket holds is exact. Values that are not finite are only counted.
class Curve {
 public:
  static constexpr size_t kMaxBuckets = 600;
  struct Bucket {
    int64_t first = 0, last = 0;  // steps
    int64_t count = 0;
    double sum = 0, min = 0, max = 0;
    double mean() const { return sum / static_cast<double>(count); }
    double middle() const { return 0.5 * static_cast<double>(first + last); }
  };

  // Steps ascend.
  void Add(int64_t step, double value);

  const std::vector<Bucket>& buckets() const { return buckets_; }
  bool empty() const { return buckets_.empty(); }
  int64_t non_finite() const { return non_finite_; }
  int64_t count() const { return count_; }
  double sum() const { return sum_; }
  // Over all buckets that overlap the steps in [first, last]. 0 if there are none.
  double Mean(int64_t first, int64_t last) const;
  // The quantile of the means of the same buckets. share = 0.5: the median, which one slow step
  // does not affect.
  double Quantile(double share, int64_t first, int64_t last) const;
  double Median(int64_t first, int64_t last) const { return Quantile(0.5, first, last); }

 private:
  int64_t stride_ = 1;  // steps per bucket
  std::vector<Bucket> buckets_;
  int64_t non_finite_ = 0, count_ = 0;
  double sum_ = 0;
};

// Everything that the lines of metrics.jsonl say.
class RunHistory {
 public:
  // `clip`: the largest gradient norm; 0: no clipping.
  explicit RunHistory(double clip = 0) : clip_(clip) {}

  static constexpr size_t kMaxValLosses = 1200;

  void Add(const StepMetrics& metrics);
  // Adds a metrics.jsonl, skipping lines that are not metrics. IoError.
  void AddFile(const std::string& path);

  struct Point {
    int64_t step;
    double value;
  };
  int64_t first_step() const { return first_step_; }  // 0: none yet
  int64_t last_step() const { return last_step_; }
  double clip() const { return clip_; }
  int64_t clipped_steps() const { return clipped_steps_; }
  // Those without an update, since the loss scale was too large; their gradient norm is infinite.
  int64_t skipped_steps() const { return skipped_steps_; }
  int64_t spikes() const { return spikes_; }   // steps skipped by train.spike
  double skipped_share(int64_t first) const {  // of the steps from `first` on
    return first > last_step_ ? 0 : skipped_.Mean(first, last_step_);
  }
  // The last line that names a late rank; step 0: none does.
  const StepMetrics& last_late() const { return last_late_; }

  Curve loss, grad_norm, lr, step_ms, tokens_per_second, memory, loss_scale;
  Curve expert_most, expert_least;
  Curve reward_chosen, reward_rejected, reward_accuracy;
  Curve data_ms, forward_ms, backward_ms, exposed_ms, update_ms;
  PauseTimes pauses;                        // of the whole run
  std::map<std::string, double> kernel_ms;  // the same, by kernel
  // The finite ones, thinned once there are more than kMaxValLosses; the first, the last and the
  // best are always kept.
  std::vector<Point> val_loss;
  int64_t non_finite_val_losses = 0;
  double val_bpb = 0;  // of the last evaluation; 0: not known
  // Those of sources of the validation data, and of eval.tasks, by name; evaluations before the
  // first step are taken for it.
  std::map<std::string, Curve> val_sources, tasks;
  Curve val_loss_ema;

 private:
  void AddValLoss(const Point& point);

  double clip_;
  int64_t val_losses_ = 0;                // how many so far
  int64_t val_stride_ = 1;                // thinning keeps one in this many
  std::vector<int64_t> val_loss_number_;  // of each point in val_loss, from 0
  int64_t clipped_steps_ = 0, skipped_steps_ = 0, spikes_ = 0;
  Curve skipped_;  // 1 where a step was, with a loss scale
  int64_t first_step_ = 0, last_step_ = 0;
  StepMetrics last_late_;
};

}  // namespace lockstep::models
