// The command line of //tools:launch.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dist/launch/launch.h"

namespace lockstep::dist {

// Reads "--nproc=4 [...] [--] PROGRAM ARGUMENT...", without the launcher's own name; torchrun's
// option names also work. If help was requested, returns nullopt and puts it into *help. Throws
// InputError.
std::optional<LaunchOptions> ParseLaunchOptions(const std::vector<std::string>& arguments,
                                                std::string* help);

}  // namespace lockstep::dist
