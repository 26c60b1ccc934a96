// The state of an optimizer for ranks that join others, or have fallen behind them.
#pragma once

#include "dist/process_group.h"
#include "optim/optimizer.h"

namespace lockstep::dist {

// Collective. The state of rank 0's optimizer, and its next step, become those of all. The weights
// must be the same already, as DataParallel makes them.
void ShareOptimizer(ProcessGroup& group, optim::Optimizer& optimizer);

}  // namespace lockstep::dist
