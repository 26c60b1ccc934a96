// The terminal's output of a training run.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "models/evaluate/eval_task.h"
#include "models/gpt/gpt.h"
#include "models/memory/memory_plan.h"
#include "models/report/metrics.h"
#include "models/train/run_setup.h"
#include "models/train/utilization.h"

namespace lockstep::models {

// A line on stdout, flushed.
void Print(const std::string& line);
// "warning: ..." on stderr.
void Warn(const std::string& message);
// Whether a line could not be printed because nobody reads any more (`train_gpt | head`).
bool OutputIsClosed();

// What is trained and how, before the first step.
void PrintSetup(const RunSetup& setup, const Gpt& model, const MemoryPlan& memory);

// Prints the lines of steps, evaluations and the end.
class RunProgress {
 public:
  // Both must outlive it.
  RunProgress(const RunSetup& setup, const Utilization& utilization)
      : setup_(setup), utilization_(utilization) {}

  // Counts a step; call it before PrintStep.
  void Add(const StepMetrics& m);
  // With train.time_budget: the run's steps, as expected (0: not known yet), and the seconds to its
  // end and to that of the time.
  struct Outlook {
    int64_t steps = 0;
    double seconds = 0, left = 0;
  };
  // The line of a step. Its times cover all steps since the last line, so that the estimate does
  // not rest on one slow step.
  void PrintStep(const StepMetrics& m, const std::optional<Outlook>& outlook = {});

  // An evaluation, with a val_loss, over `tokens`, of pairs if there are metrics of them; `best`:
  // it is the best so far.
  void PrintEvaluation(const StepMetrics& m, bool best, int64_t tokens, double seconds);

  // Their table, which says all, where nothing is trained; else a line.
  void PrintTasks(int64_t step, const std::vector<TaskResult>& results, double seconds) const;
  void PrintSample(const std::string& prompt, const std::string& text) const;

  // After a signal stopped the run after `step`: how to continue it, on one machine or several.
  void PrintInterrupted(int64_t step, bool on_one_machine) const;

  struct End {
    int64_t step = 0;
    double seconds = 0;            // wall time of this process's steps and everything between them
    int64_t peak_bytes = 0;        // of tensors
    int64_t resident_bytes = 0;    // peak of the process; 0: unknown
    double best_val_loss = 0;      // 0: there is none
    int64_t best_checkpoint = -1;  // as in RunPlan
    std::string report;            // its path; empty if it could not be written
  };
  void PrintEnd(const End& end) const;

 private:
  const RunSetup& setup_;
  const Utilization& utilization_;
  int64_t steps_ = 0, total_steps_ = 0;      // since the last line, and before it
  int64_t skipped_ = 0, total_skipped_ = 0;  // of these, whose updates were skipped
  int64_t spikes_ = 0, total_spikes_ = 0;    // by train.spike
  int64_t tokens_ = 0, total_tokens_ = 0;    // since the last line, and before it
  double seconds_ = 0, total_seconds_ = 0;
  std::map<std::string, double> kernel_ms_;  // StepMetrics::kernel_ms of all steps
  int evaluations_ = 0;
  double first_val_loss_ = 0, last_val_loss_ = 0;
};

}  // namespace lockstep::models
