// Who watches a run's steps, as its options ask.
#pragma once

#include <memory>
#include <vector>

#include "models/gpt/gpt.h"
#include "models/train/run_ranks.h"
#include "models/train/run_setup.h"
#include "models/train/step/fingerprint_recorder.h"
#include "models/train/step/forward_place.h"
#include "models/train/step/objective.h"
#include "models/train/step/op_trace.h"
#include "models/train/step/step_observer.h"
#include "models/train/step/step_ranks.h"

namespace lockstep::models {

// Those of log.fingerprints and log.ops; nobody watches a run that only evaluates.
class StepObservers {
 public:
  // Collective. Everything outlives it, as it does the steps.
  StepObservers(const RunSetup& setup, const RunRanks& ranks, const StepRanks& step_ranks,
                const Objective& objective, Gpt& model);

  // TrainerOptions::observers.
  const std::vector<StepObserver*>& all() const { return all_; }
  // Whether the run's steps may be CUDA graphs, as it asks. They run no operation of which log.ops
  // could tell.
  static bool AllowGraphs(const RunConfig& config) {
    return config.train.cuda_graphs && config.log.ops.empty();
  }
  // Whether the step of log.ops is made and written. The run ends with it.
  bool end_run() const { return ops_ && ops_->done(); }

 private:
  std::unique_ptr<ForwardPlace> place_;
  std::unique_ptr<FingerprintRecorder> fingerprints_;
  std::unique_ptr<OpTrace> ops_;
  std::vector<StepObserver*> all_;
};

}  // namespace lockstep::models
