// How a run keeps to train.time_budget.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace lockstep::models {

// What a run does between its steps.
enum class Pause { kEvaluation, kTasks, kSample, kCheckpoint };
inline constexpr size_t kPauses = 4;

struct TimeBudgetOptions {
  double seconds = 0;         // of the run, from its start to its exit
  double decay_fraction = 0;  // of its steps, that the decay takes
  // Of each Pause: after how many steps it comes again (0: only at the end), and how many steps it
  // is taken to be as long as, until one was measured.
  std::array<int64_t, kPauses> every{};
  std::array<double, kPauses> steps{};
  // How long the run is taken to wait for a checkpoint that must be written, until one was
  // measured.
  double save_seconds = 0;
};

// Says by the clock when a run begins its decay, and how many steps it then makes in the time that
// is left. It only computes: it is told the time, in seconds of the run.
//
// The time of a step is a mean that forgets what is longer ago than half the decay will take: long
// enough for a busy machine's bursts, and short enough to notice that it is another machine now.
// The end is planned for 2% before the time is over. Once the decay has begun, its steps are fixed
// (DecaySlack).
class TimeBudget {
 public:
  explicit TimeBudget(const TimeBudgetOptions& options) : options_(options) {}

  // After `step` updates, before what is due then. Time between two calls is the steps', but for
  // pauses.
  void Add(double now, int64_t step);
  // A pause held up the steps for so long.
  void AddPause(Pause pause, double seconds);
  // A checkpoint was written, from its beginning to its end.
  void AddSave(double seconds);

  // As of the last Add: the run's last step if its decay began now; none as long as the time of
  // steps is not known, unless there is none left.
  std::optional<int64_t> LastStep() const;
  // The same if the decay should begin now.
  std::optional<int64_t> BeginDecay() const;
  // From the last Add to the exit of a run that ends with step `last`; `begins_decay`: where the
  // decay begins, a checkpoint is written.
  double SecondsTo(int64_t last, bool begins_decay) const;
  // From the last Add to when the time is over.
  double SecondsLeft() const { return options_.seconds - now_; }

 private:
  double StepSeconds() const { return steps_ > 0 ? seconds_ / steps_ : 0; }
  double PauseSeconds(size_t pause) const;

  const TimeBudgetOptions options_;
  double now_ = 0;
  int64_t step_ = -1;               // of the last Add; -1: there was none
  double steps_ = 0, seconds_ = 0;  // made, and taken by these; what is longer ago counts less
  double paused_ = 0;               // since the last Add
  std::array<double, kPauses> pauses_{};  // their seconds
  std::optional<double> save_;
};

// By what share of the time of a step a machine may get slower during a decay of this fraction,
// until the run ends more than a tenth late: 0.6 for 0.2, 0.3 for 0.4.
double DecaySlack(double decay_fraction);

// Since this process began, or rather since this program was loaded.
double SecondsOfProcess();

}  // namespace lockstep::models
