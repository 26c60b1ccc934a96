// The curves of a run, as the figures of its report.
#pragma once

#include <string>

#include "models/report/report.h"

namespace lockstep::models {

// In HTML: losses, norms, rates, memory, and where the time went. What was not measured is left
// out.
std::string ReportCharts(const RunHistory& history, const ReportInput& input);

}  // namespace lockstep::models
