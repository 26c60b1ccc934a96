// The tasks that a run evaluates its model on (eval.*).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/evaluate/eval_task.h"
#include "models/train/run_setup.h"
#include "models/train/step/step_ranks.h"

namespace lockstep::models {

// A run's ranks, as those that divide the batches of an evaluation; these outlive it.
Evaluators EvaluatorsAmong(StepRanks& ranks);

class RunTasks {
 public:
  // Reads the tasks' files. InputError for these, for unknown tasks, and for data without a
  // tokenizer. `setup` outlives it.
  explicit RunTasks(const RunSetup& setup);

  // Collective. A context is the run's window, and as many sequences are computed at once as in a
  // micro-batch, so that an evaluation takes no more memory than a step. The data ranks and those
  // of a sequence divide the questions; figures have the same bits at any number of them. Nothing,
  // if `stop` says so (ScoreOptions::stop).
  std::optional<std::vector<TaskResult>> Run(Gpt& model, StepRanks& ranks,
                                             const std::function<bool()>& stop) const;

  // Whether they are due after this step, besides the last.
  bool DueAfter(int64_t step) const;

 private:
  const RunSetup& setup_;
  const RequestEncoder encoder_;
  std::vector<std::unique_ptr<EvalTask>> tasks_;
};

// Null without eval.tasks.
std::unique_ptr<RunTasks> MakeRunTasks(const RunSetup& setup);

// "hellaswag acc" and its value, ...: those of whole tasks.
std::vector<std::pair<std::string, double>> NamedFigures(const std::vector<TaskResult>& results);

}  // namespace lockstep::models
