// A group that moves nothing: for planning, on the meta device.
#pragma once

#include <memory>

#include "dist/process_group.h"

namespace lockstep::dist {

// Rank 0 of a group of so many, whose others do not exist. Its calls check their arguments, as
// every group's, and are done at once.
std::shared_ptr<ProcessGroup> MakePlannedGroup(int size);

}  // namespace lockstep::dist
