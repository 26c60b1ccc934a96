// What is trained and how, in words.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "models/gpt/gpt.h"
#include "models/memory/memory_plan.h"
#include "models/train/run_setup.h"

namespace lockstep::models {

// Names ("model", "data", "batch", ...) and lines, for the terminal and the report.
std::vector<std::pair<std::string, std::string>> DescribeRun(const RunSetup& setup,
                                                             const Gpt& model,
                                                             const MemoryPlan& memory);

}  // namespace lockstep::models
