// The command line of //tools:launch.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dist/launch/launch.h"

namespace lockstep::dist {

// Reads "--nproc=4 [...] [--] PROGRAM ARGUMENT...", without the launcher's own name; torchrun's
// names for the same options do as well. nullopt where help was asked for, which is in *help then.
// Throws InputError.
std::optional<LaunchOptions> ParseLaunchOptions(const std::vector<std::string>& arguments,
                                                std::string* help);

// Ranks on this machine: a number, "gpu" (as many as real GPUs), "cpu" (as many as processors),
// "auto" (as gpu, but 1 where there is none). Throws InputError.
int ReadNproc(const std::string& text);

}  // namespace lockstep::dist
