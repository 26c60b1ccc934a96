// What the plan says of a run, by the owners of its ledger.
#pragma once

#include <cstdint>

#include "models/memory/memory_plan.h"
#include "models/plan/step_time.h"
#include "models/report/ledger.h"
#include "models/train/utilization.h"

namespace lockstep::models {

// They add up to the step, and to the peak. What is computed again counts as what it is.
Amounts ByOwner(const StepTime& time);
Amounts ByOwner(const MemoryPlan& plan);

// Of a run on so many ranks, by the device and its measured rate of products. Empty where a step is
// not planned: on a simulated GPU, with adapters, for pairs of answers, and for workers that meet
// once in many steps.
Amounts PlannedStep(const RunSetup& setup, int64_t ranks, const Utilization& utilization);

}  // namespace lockstep::models
