// train_gpt --budget=10m: measures this machine, and chooses the run that makes the best of it.
#pragma once

#include <string>
#include <vector>

#include "models/options/config.h"
#include "models/train/budget/budget.h"

namespace lockstep::models {

// Opens the data of `options`, which filled `config`, trains models of three depths for some
// seconds, and prints the choice, the two beside it, and what each is expected to come to. Returns
// the arguments that stand for the choice; of a time, the clock settles the steps. Where out_dir
// holds a run that was chosen before, that goes on, with its depth and batch. Throws InputError for
// options that decide the same, and where there are several ranks.
std::vector<std::string> ChooseRun(const Budget& budget, const Options& options,
                                   const RunConfig& config);

}  // namespace lockstep::models
