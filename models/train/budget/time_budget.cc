#include "models/train/budget/time_budget.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace lockstep::models {
namespace {

using Clock = std::chrono::steady_clock;
const Clock::time_point kLoaded = Clock::now();

// Of the time, when the run is planned to end: what nothing foresees comes late, not early.
constexpr double kTarget = 0.98;
// For the report, and for leaving.
constexpr double kExitSeconds = 0.2;

}  // namespace

double DecaySlack(double decay_fraction) { return (1.1 - kTarget) / decay_fraction; }

double SecondsOfProcess() { return std::chrono::duration<double>(Clock::now() - kLoaded).count(); }

void TimeBudget::Add(double now, int64_t step) {
  if (step_ >= 0 && step > step_) {
    const double seconds = std::max(0.0, now - now_ - paused_);
    const double remembered = options_.decay_fraction * options_.seconds / 2;
    const double kept = std::exp(-seconds / remembered);
    steps_ = kept * steps_ + static_cast<double>(step - step_);
    seconds_ = kept * seconds_ + seconds;
  }
  now_ = now;
  step_ = step;
  paused_ = 0;
}

void TimeBudget::AddPause(Pause pause, double seconds) {
  paused_ += seconds;
  double& known = pauses_[static_cast<size_t>(pause)];
  known = known > 0 ? (known + seconds) / 2 : seconds;  // the first one is often slower
}

void TimeBudget::AddSave(double seconds) { save_ = save_ ? (*save_ + seconds) / 2 : seconds; }

double TimeBudget::PauseSeconds(size_t pause) const {
  return pauses_[pause] > 0 ? pauses_[pause] : options_.steps[pause] * StepSeconds();
}

double TimeBudget::SecondsTo(int64_t last, bool begins_decay) const {
  double seconds = static_cast<double>(last - step_) * StepSeconds() + kExitSeconds +
                   save_.value_or(options_.save_seconds) * (begins_decay ? 2 : 1);
  for (size_t pause = 0; pause < kPauses; ++pause) {
    const int64_t every = options_.every[pause];
    int64_t times = every > 0 ? (last - 1) / every - (step_ - 1) / every : 0;
    if (pause != static_cast<size_t>(Pause::kCheckpoint)) ++times;  // after the last step
    seconds += static_cast<double>(times) * PauseSeconds(pause);
  }
  return seconds;
}

std::optional<int64_t> TimeBudget::LastStep() const {
  const double left = kTarget * options_.seconds - now_;
  if (left <= 0) return step_ + 1;
  if (steps_ == 0) return {};
  // The largest that fits. Without its pauses, no more than these would.
  int64_t fits = step_ + 1, too_many = fits + 1 + static_cast<int64_t>(left / StepSeconds());
  while (too_many - fits > 1) {
    const int64_t middle = fits + (too_many - fits) / 2;
    (SecondsTo(middle, /*begins_decay=*/true) <= left ? fits : too_many) = middle;
  }
  return fits;
}

std::optional<int64_t> TimeBudget::BeginDecay() const {
  const auto last = LastStep();
  if (!last) return {};
  const double decay = options_.decay_fraction * static_cast<double>(*last);
  return static_cast<double>(*last - step_) <= std::max(1.0, decay) ? last : std::nullopt;
}

}  // namespace lockstep::models
