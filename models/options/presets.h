// Named configurations: --model.preset=NAME.
#pragma once

#include <vector>

#include "models/options/options.h"

namespace lockstep::models {

// Each sets options of any section; what it leaves out keeps its default.
const std::vector<Preset>& Presets();

}  // namespace lockstep::models
