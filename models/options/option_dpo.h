// Preference tuning: what train.objective = dpo and dpo.* say of it.
#pragma once

#include <string>

#include "models/options/options.h"

namespace lockstep::models {

struct RunConfig;

struct DpoRunOptions {
  std::string loss = "sigmoid";
  double beta = 0.1;
  double label_smoothing = 0;
};

void AddDpoOptions(Options& options, DpoRunOptions& dpo);

// Fails for options that have no effect, or that preference tuning does not support.
void CheckDpo(const Options& options, const RunConfig& config);

}  // namespace lockstep::models
