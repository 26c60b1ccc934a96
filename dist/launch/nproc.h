// Numbers of a launcher's command line.
#pragma once

#include <string>

namespace lockstep::dist {

// The whole number in `text`. Throws InputError that says `what` it is, if it is none or less than
// `least`.
int ReadWhole(const std::string& what, const std::string& text, int least);

// Ranks on this machine: a number, "gpu" (as many as real GPUs), "cpu" (as many as processors),
// "auto" (as gpu, but 1 where there is none). Throws InputError.
int ReadNproc(const std::string& text);

}  // namespace lockstep::dist
