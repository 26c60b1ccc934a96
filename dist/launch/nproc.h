// Numbers on a launcher's command line.
#pragma once

#include <optional>
#include <string>

#include "dist/launch/launch.h"

namespace lockstep::dist {

// The whole number in `text`. Throws InputError, which calls it `what`, unless it is a number of at
// least `least`.
int ReadWhole(const std::string& what, const std::string& text, int least);

// The number of ranks on this machine: a number, "gpu" (one per real GPU), "cpu" (one per
// processor) or "auto" (like gpu, but 1 if there is none). Throws InputError.
int ReadNproc(const std::string& text);

// For programs that start themselves: with --nproc=N (as ReadNproc) among the arguments, runs this
// program as N ranks on this machine with the other ones, and returns the exit code; else returns
// nullopt. Throws InputError.
std::optional<int> LaunchIfAsked(int argc, char** argv, LaunchOptions options = {});

}  // namespace lockstep::dist
