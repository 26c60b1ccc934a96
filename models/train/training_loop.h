// The loop around Trainer: evaluations, samples, checkpoints, records.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "data/loader.h"
#include "models/memory/memory_plan.h"
#include "models/options/option_step_range.h"
#include "models/report/run_log.h"
#include "models/report/run_progress.h"
#include "models/train/budget/time_budget.h"
#include "models/train/elastic/elastic_run.h"
#include "models/train/run_checkpoints.h"
#include "models/train/run_data.h"
#include "models/train/run_ranks.h"
#include "models/train/run_setup.h"
#include "models/train/run_tasks.h"
#include "models/train/slow_rank_watch.h"
#include "models/train/step/kernel_times.h"
#include "models/train/step/step_observers.h"
#include "models/train/step/trainer.h"

namespace lockstep::models {

// Every rank runs the same loop: the same steps, evaluations and samples, so that any forward may
// communicate. Only the main rank prints and writes to the run's folder.
class TrainingLoop {
 public:
  // Collective. `setup` and `ranks` outlive it, and so does `elastic`, of an elastic run. With
  // train.time_budget, it settles the steps in `setup`.
  TrainingLoop(RunSetup& setup, const MemoryPlan& memory, const Utilization& utilization,
               const RunRanks& ranks, ElasticRun* elastic = nullptr);

  // Collective. Trains to the last step, or until a signal reaches any rank: all ranks stop after
  // the same step, with a checkpoint. Returns 0, or 128 + signal. Throws Error.
  int Train();

  // Collective. Prints the validation loss before the first step; returns 0. Throws InputError if
  // there is no validation data. Where setup.start.evaluates, this is all that can be called.
  int EvaluateOnly();

 private:
  using Clock = std::chrono::steady_clock;
  ReportInput MakeReportInput() const;
  bool interrupted() const { return trainer_.step() < setup_.steps() || rest_; }
  TrainerState State() const;
  void Keep();
  void CopyState();
  int TrainSteps();
  void Begin();
  std::optional<StepMetrics> TrainStep();
  StepMetrics FinishStep();
  bool WatchesKernels(int64_t step) const;
  KernelTimes* WatchedKernels(int64_t step) { return WatchesKernels(step) ? &kernels_ : nullptr; }
  void Add(StepMetrics& m);
  bool DoWhatIsDue(StepMetrics m);
  void Evaluate(StepMetrics* m);
  void EvaluateTasks(StepMetrics* m);
  bool TasksAreDue(int64_t step) const;
  void Sample();
  void Save(const SaveOptions& options, const std::string& unfinished_metrics = "");
  void NoteSave();
  void End(double seconds, bool complete);
  void Mark() const;
  void WriteKernelChoices() const;
  void FinishTrace();
  void StartClock();
  int64_t LastStepByClock();
  void SettleEnd(int64_t last);
  double Seconds() const { return setup_.start.seconds + SecondsOfProcess(); }
  std::optional<RunProgress::Outlook> OutlookByClock() const;
  int Interrupt(bool ask = false);
  bool Due(int64_t step) const;
  static bool Every(int64_t period, int64_t step) { return period > 0 && step % period == 0; }
  bool IsPrinted(int64_t step) const {
    return Every(config_.train.log_every, step) || step == setup_.steps() || step == 1;
  }
  static double SecondsSince(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  // Runs f() on all ranks, and records its time.
  template <class F>
  auto Timed(Pause pause, const F& f) {
    constexpr double PauseTimes::*kTimes[] = {&PauseTimes::eval_ms, &PauseTimes::eval_ms,
                                              &PauseTimes::sample_ms, &PauseTimes::checkpoint_ms};
    if (!log_) return f();
    struct Watch {
      TimeBudget* budget;
      Pause pause;
      Clock::time_point start = Clock::now();
      ~Watch() {
        if (budget != nullptr) budget->AddPause(pause, SecondsSince(start));
      }
    };
    const Watch watch{budget_ ? &*budget_ : nullptr, pause};
    return log_->Timed(kTimes[static_cast<size_t>(pause)], f);
  }

  RunSetup& setup_;
  const MemoryPlan memory_;
  Utilization utilization_;
  const RunRanks& ranks_;
  const RunConfig& config_;
  const std::optional<StepRange> traced_;
  const std::unique_ptr<TraceRecorder> trace_;  // only on the main rank, else null
  ElasticRun* const elastic_;                   // null if the run is not elastic
  const std::shared_ptr<Gpt> owned_model_;
  Gpt& model_;
  const std::unique_ptr<StepRanks> step_ranks_;
  const std::shared_ptr<optim::Optimizer> optimizer_;  // null if setup_.start.evaluates
  const std::unique_ptr<const Objective> objective_;
  data::Sampler sampler_;
  data::Loader loader_;
  const TrainerState from_;  // of what this rank goes on from
  const StepObservers observers_;
  Trainer trainer_;
  KernelTimes kernels_;
  SlowRankWatch slow_ranks_;
  RunCheckpoints checkpoints_;
  RunProgress progress_;
  std::unique_ptr<RunLog> log_;  // only on the main rank, else null
  const std::vector<ValidationStream> validation_;
  const std::unique_ptr<const RunTasks> tasks_;  // null without any
  std::optional<TimeBudget> budget_;             // on the main rank, with train.time_budget
  int64_t peak_bytes_ = 0, memory_bytes_ = 0;    // of tensors: in the whole run, in the last step
  int interrupt_ = 0;                            // the signal received; 0: none
  // After which step, and when, ranks last asked each other for signals, and after which they will.
  int64_t asked_step_ = 0, ask_step_ = 0;
  Clock::time_point asked_ = Clock::now(), save_began_{};
  double best_val_loss_ = 0, last_loss_ = 0;
  // TrainerState::unfinished_metrics of the checkpoint that it goes on from.
  std::optional<StepMetrics> unfinished_;
  bool told_ = false;      // that a signal waits for the end of a round
  bool rest_ = false;      // of what is due after the newest step, which a signal left out
  bool summoned_ = false;  // to another world of an elastic run
  std::optional<StepMetrics> newest_{};  // of the newest step
  StateCopies::InWorld copies_;          // null unless an elastic run goes on from them
};

}  // namespace lockstep::models
