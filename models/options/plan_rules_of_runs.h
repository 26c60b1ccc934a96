// The rules of plan_rules.h about a run that is prepared.
#pragma once

#include <span>

#include "models/options/plan_rules.h"

namespace lockstep::models {

std::span<const PlanRule> PlanRulesOfRuns();

}  // namespace lockstep::models
