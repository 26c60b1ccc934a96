// A group that moves nothing: for planning, on the meta device.
#pragma once

#include <memory>

#include "dist/process_group.h"

namespace lockstep::dist {

// One rank of a group of `size`, whose other ranks do not exist. Its calls check their arguments,
// as every group's, and are done at once; values that are gathered are this rank's (agreement.h).
std::shared_ptr<ProcessGroup> MakePlannedGroup(int size, int rank = 0);

}  // namespace lockstep::dist
