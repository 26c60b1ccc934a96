// A training run from start to end: what train_gpt does.
#pragma once

#include "models/options/config.h"

namespace lockstep::models {

struct RunMode {
  bool evaluates = false;  // only prints the validation loss of config.init_from; writes no files
  bool dry_run = false;    // only prints what would be done
};

// Trains as configured, writing progress to stdout and everything else to config.out_dir. `options`
// are those that filled `config`. Returns the exit code: 0, or 128 + signal after an interrupt that
// left a checkpoint. Throws Error.
int TrainGpt(const Options& options, const RunConfig& config, RunMode mode = {});

}  // namespace lockstep::models
