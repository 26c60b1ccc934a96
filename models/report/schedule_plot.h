// A pipeline's schedule as a picture, inline SVG.
#pragma once

#include <string>

#include "dist/pipeline/schedule.h"

namespace lockstep::models {

// A row per rank and a box per action, of the width that it takes if forward, input gradient and
// weight gradient take equally long. Later stages of a rank are darker. With more than 32 ranks or
// 4,000 actions only the first ranks are drawn, and a line says so.
std::string SvgSchedule(const dist::PipelineSchedule& schedule);

// "4 ranks, 8 micro-batches, 1 stage per rank: ranks idle for 27% of a step, at best"
std::string DescribeSchedule(const dist::PipelineSchedule& schedule);

}  // namespace lockstep::models
