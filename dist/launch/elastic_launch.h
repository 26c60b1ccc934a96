// Launches ranks that go on without those that end.
#pragma once

#include "dist/launch/launch.h"

namespace lockstep::dist {

// Launch for options.elastic. A rank that ends is started again by itself, up to max_restarts
// times on each machine, and joins the others, which have gone on from their own memory
// (membership.h). If none is left that has the run in its memory, all begin from the newest
// checkpoint. The run ends when a rank has finished it, when all were told to stop, or when it
// cannot go on: too few ranks are left, or one was refused its input.
int LaunchElastically(const LaunchOptions& options);

}  // namespace lockstep::dist
