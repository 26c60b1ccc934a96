// Checks that span options.
#pragma once

#include "models/options/config.h"

namespace lockstep::models {

// Throws InputError (Options::Fail) naming options that contradict each other and what to write
// instead; of two that exclude each other, the one from the stronger source wins. `options` are
// those of AddRunOptions, and write to `config`.
void CheckRun(Options& options, const RunConfig& config);

}  // namespace lockstep::models
