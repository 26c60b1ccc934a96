// train_gpt --auto: plans a run for the ranks that it was started on.
#pragma once

#include <string>
#include <vector>

#include "models/options/config.h"

namespace lockstep::models {

// Collective over the run's ranks, which then all have what rank 0 chose: the arguments that stand
// for the fastest plan that fits in the memory that is free now. `options` are those that filled
// `config`; what the user wrote stays, and a step has as many sequences as without a plan. Rank 0
// prints the best plans, and why each value was chosen. Where out_dir holds a run, its plan stands.
// Throws InputError, on all ranks: where no plan fits, with what would; and for options that
// decide otherwise while the run goes on.
std::vector<std::string> PlanRun(const Options& options, const RunConfig& config);

}  // namespace lockstep::models
