// A preflight's report: a pure function of its facts.
#pragma once

#include <string>

#include "dist/preflight/facts.h"
#include "dist/preflight/judgement.h"

namespace lockstep::dist {

// The tables of what was found, as far as the preflight came, and what follows from it. Up to
// PairSchedule::kMostOfAllPairs ranks there is a cell for each pair of ranks, beyond for each pair
// of machines, with the medians.
std::string MakeReport(const PreflightFacts& facts, const Judgement& judgement);

}  // namespace lockstep::dist
