// The command line of //tools:launch.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dist/launch/launch.h"

namespace lockstep::dist {

// Reads "--nproc=4 [...] [--] PROGRAM ARGUMENT...", without the launcher's own name; torchrun's
// option names also work, and its variables (PET_NNODES, ...) for what is not given. With --check,
// the program is the launcher itself, which then is a rank of a preflight. If help was requested,
// returns nullopt and puts it into *help. Throws InputError.
std::optional<LaunchOptions> ParseLaunchOptions(const std::vector<std::string>& arguments,
                                                std::string* help);

// The device that was given to --check, if these are the arguments of such a rank.
std::optional<std::string> DeviceToCheck(const std::vector<std::string>& arguments);

}  // namespace lockstep::dist
