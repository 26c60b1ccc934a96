// The runs of a sweep, trained one after the other.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "dist/launch/launch.h"
#include "models/options/config.h"
#include "models/sweep/sweep.h"

namespace lockstep::models {

// Reads a command line of train_gpt, without argv[0]. Throws InputError.
using ReadArguments = std::function<RunConfig(const std::vector<std::string>&)>;

// Trains each point of the sweep in a folder of its own below `out_dir`, by the command of `launch`
// and the point's settings, and writes out_dir/runs.html after each. Runs that are finished are
// left alone and others continue, so that the same command goes on after an interruption. A run
// that fails does not keep the next from starting. Prints a table at the end, and returns the exit
// code: 0, 1 if a run failed, or that of a run that a signal ended, which is the last one then.
//
// Nothing is trained if any of the command lines is wrong. Throws InputError.
int TrainSweep(const Sweep& sweep, const std::string& out_dir, const dist::LaunchOptions& launch,
               const ReadArguments& read);

}  // namespace lockstep::models
