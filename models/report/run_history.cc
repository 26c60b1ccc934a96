#include "models/report/run_history.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "models/report/json_lines.h"

namespace lockstep::models {
namespace {

void Merge(Curve::Bucket& into, const Curve::Bucket& from) {
  into.last = from.last;
  into.count += from.count;
  into.sum += from.sum;
  into.min = std::min(into.min, from.min);
  into.max = std::max(into.max, from.max);
}

bool Overlaps(const Curve::Bucket& b, int64_t first, int64_t last) {
  return b.last >= first && b.first <= last;
}

}  // namespace

void Curve::Add(int64_t step, double value) {
  if (!std::isfinite(value)) {
    ++non_finite_;
    return;
  }
  ++count_;
  sum_ += value;
  const Bucket one{step, step, 1, value, value, value};
  // Steps are counted from 1.
  if (!buckets_.empty() && (buckets_.back().first - 1) / stride_ == (step - 1) / stride_) {
    Merge(buckets_.back(), one);
    return;
  }
  buckets_.push_back(one);
  if (buckets_.size() <= kMaxBuckets) return;
  stride_ *= 2;
  std::vector<Bucket> merged;
  for (const Bucket& b : buckets_) {
    if (!merged.empty() && (merged.back().first - 1) / stride_ == (b.first - 1) / stride_) {
      Merge(merged.back(), b);
    } else {
      merged.push_back(b);
    }
  }
  buckets_ = std::move(merged);
}

double Curve::Mean(int64_t first, int64_t last) const {
  double sum = 0;
  int64_t count = 0;
  for (const Bucket& b : buckets_) {
    if (!Overlaps(b, first, last)) continue;
    sum += b.sum;
    count += b.count;
  }
  return count > 0 ? sum / static_cast<double>(count) : 0;
}

double Curve::Quantile(double share, int64_t first, int64_t last) const {
  std::vector<double> means;
  for (const Bucket& b : buckets_) {
    if (Overlaps(b, first, last)) means.push_back(b.mean());
  }
  if (means.empty()) return 0;
  const auto at =
      std::min(means.size() - 1, static_cast<size_t>(share * static_cast<double>(means.size())));
  std::nth_element(means.begin(), means.begin() + static_cast<std::ptrdiff_t>(at), means.end());
  return means[at];
}

void RunHistory::AddValLoss(const Point& point) {
  val_loss.push_back(point);
  val_loss_number_.push_back(val_losses_++);
  if (val_loss.size() <= kMaxValLosses) return;
  while (val_losses_ / val_stride_ > static_cast<int64_t>(kMaxValLosses) / 2) val_stride_ *= 2;
  const auto best = std::min_element(val_loss.begin(), val_loss.end(),
                                     [](auto& a, auto& b) { return a.value < b.value; }) -
                    val_loss.begin();
  size_t kept = 0;
  for (size_t i = 0; i < val_loss.size(); ++i) {
    const bool last = i + 1 == val_loss.size();
    if (val_loss_number_[i] % val_stride_ != 0 && !last && best != static_cast<std::ptrdiff_t>(i))
      continue;
    val_loss[kept] = val_loss[i];
    val_loss_number_[kept++] = val_loss_number_[i];
  }
  val_loss.resize(kept);
  val_loss_number_.resize(kept);
}

void RunHistory::Add(const StepMetrics& m) {
  pauses.eval_ms += m.pauses.eval_ms;
  pauses.sample_ms += m.pauses.sample_ms;
  pauses.checkpoint_ms += m.pauses.checkpoint_ms;
  pauses.report_ms += m.pauses.report_ms;
  for (const auto& [name, ms] : m.kernel_ms) {
    if (std::isfinite(ms)) kernel_ms[name] += ms;
  }
  if (m.val_loss) {
    val_bpb = m.val_bpb.value_or(0);
    if (std::isfinite(*m.val_loss)) {
      AddValLoss({m.step, *m.val_loss});
    } else {
      ++non_finite_val_losses;
    }
  }
  if (m.val_loss_ema) val_loss_ema.Add(std::max<int64_t>(m.step, 1), *m.val_loss_ema);
  for (const SourceLoss& of : m.val_sources) {
    val_sources[of.name].Add(std::max<int64_t>(m.step, 1), of.loss);
  }
  for (const auto& [name, value] : m.tasks) {
    tasks[name].Add(std::max<int64_t>(m.step, 1), value);
  }
  if (m.step == 0) return;
  if (first_step_ == 0) first_step_ = m.step;
  last_step_ = m.step;
  loss.Add(m.step, m.loss);
  grad_norm.Add(m.step, m.grad_norm);
  if (clip_ > 0 && m.grad_norm > clip_ && !m.skipped && !m.spike) ++clipped_steps_;
  if (m.skipped) ++skipped_steps_;
  if (m.spike) ++spikes_;
  if (!m.late.empty()) last_late_ = m;
  if (m.expert_most > 0) {
    expert_most.Add(m.step, m.expert_most);
    expert_least.Add(m.step, m.expert_least);
  }
  if (m.preference) {
    reward_chosen.Add(m.step, m.preference->chosen);
    reward_rejected.Add(m.step, m.preference->rejected);
    reward_accuracy.Add(m.step, m.preference->accuracy);
  }
  if (m.loss_scale > 0) {
    loss_scale.Add(m.step, m.loss_scale);
    skipped_.Add(m.step, m.skipped ? 1 : 0);
  }
  lr.Add(m.step, m.lr);
  step_ms.Add(m.step, m.ms);
  tokens_per_second.Add(m.step, m.tokens_per_second);
  if (m.memory_bytes > 0) memory.Add(m.step, static_cast<double>(m.memory_bytes));
  if (m.times.total() == 0) return;
  data_ms.Add(m.step, m.times.data_ms);
  forward_ms.Add(m.step, m.times.forward_ms);
  backward_ms.Add(m.step, m.times.backward_ms);
  exposed_ms.Add(m.step, m.times.exposed_ms);
  update_ms.Add(m.step, m.times.update_ms);
}

void RunHistory::AddFile(const std::string& path) {
  ForEachLine(path, [&](const std::string& line) {
    const auto metrics = ParseMetrics(line);
    if (metrics && metrics->step >= last_step_) Add(*metrics);
  });
}

}  // namespace lockstep::models
