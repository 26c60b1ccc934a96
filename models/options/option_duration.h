// Options that say how long something takes.
#pragma once

#include <string_view>

namespace lockstep::models {

// The seconds of "90s", "10m", "1.5h", "2d" or "1h30m"; "" gives 0. Throws InputError; the message
// does not say where the text came from.
double ParseDuration(std::string_view text);

}  // namespace lockstep::models
