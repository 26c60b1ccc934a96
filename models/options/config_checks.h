// Checks that span options.
#pragma once

#include <string>

#include "models/options/config.h"

namespace lockstep::models {

// Throws InputError (Options::Fail) naming options that contradict each other and what to write
// instead; of two that exclude each other, the one from the stronger source wins. `options` are
// those of AddRunOptions, and write to `config`.
void CheckRun(Options& options, const RunConfig& config);

// Fails for options of a mixture that contradict the rest, or have no effect. The model may be that
// of the weights of `weights`, a folder: then what the user did not write is the weights' or
// unused, and fits.
void CheckMixture(const Options& options, const ModelOptions& model,
                  const std::string& weights = "");

}  // namespace lockstep::models
