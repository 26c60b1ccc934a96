// Numbers on a launcher's command line.
#pragma once

#include <string>

namespace lockstep::dist {

// The whole number in `text`. Throws InputError, which calls it `what`, unless it is a number of at
// least `least`.
int ReadWhole(const std::string& what, const std::string& text, int least);

// The number of ranks on this machine: a number, "gpu" (one per real GPU), "cpu" (one per
// processor) or "auto" (like gpu, but 1 if there is none). Throws InputError.
int ReadNproc(const std::string& text);

}  // namespace lockstep::dist
