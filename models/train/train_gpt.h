// A training run from start to end: what train_gpt does.
#pragma once

#include "models/options/config.h"

namespace lockstep::models {

enum class RunMode {
  kTrain,
  kDryRun,    // only prints what would be done
  kEvaluate,  // only prints the validation loss of config.init_from; writes no files
};

// Trains as configured, writing progress to stdout and everything else to config.out_dir. `options`
// are those that filled `config`. Returns the exit code: 0, or 128 + signal after an interrupt that
// left a checkpoint. Throws Error.
int TrainGpt(const Options& options, const RunConfig& config, RunMode mode = RunMode::kTrain);

}  // namespace lockstep::models
