// Numbers on a launcher's command line.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dist/launch/launch.h"

namespace lockstep::dist {

// The whole number in `text`. Throws InputError, which calls it `what`, unless it is a number of at
// least `least`.
int ReadWhole(const std::string& what, const std::string& text, int least);

// The number of ranks on this machine: a number, "gpu" (one per real GPU), "cpu" (one per
// processor) or "auto" (like gpu, but 1 if there is none). Throws InputError.
int ReadNproc(const std::string& text);

// Takes an option that is read before all others, "--nproc", out of a program's arguments, which
// are without argv[0], and returns its values, of --nproc=2 or --nproc 2. Throws InputError, with
// the `example`, where a value is missing.
std::vector<std::string> TakeOption(const std::string& option, const std::string& example,
                                    std::vector<std::string>* arguments);

// For programs that start themselves. Takes --nproc=N (as ReadNproc) out of the arguments, and
// returns N, or nullopt without it. The program checks the other arguments itself, so that what is
// wrong with them is said once, and then calls Launch with `argv[0] arguments...` as the command.
// Throws InputError, also for options of the launcher.
std::optional<int> TakeNproc(const std::string& program, std::vector<std::string>* arguments);

}  // namespace lockstep::dist
