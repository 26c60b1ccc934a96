// Schedules as text, as PyTorch writes them.
#pragma once

#include <string>
#include <string_view>

#include "dist/pipeline/schedule.h"

namespace lockstep::dist {

// One line per rank, cells in order: "0F0,0F1,0B0,0B1\n". Reading also takes empty cells, which
// mean nothing. Throws ArgumentError naming the line and the cell that is no action, or a stage
// that is on two ranks or on none.
std::string ToCsv(const PipelineSchedule& schedule);
PipelineSchedule ScheduleFromCsv(std::string_view text);

}  // namespace lockstep::dist
