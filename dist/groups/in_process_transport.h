// Messages between threads.
#pragma once

#include <memory>
#include <vector>

#include "dist/groups/transport.h"

namespace lockstep::dist {

// One transport per rank. To the others, a rank that destroys its transport is lost.
std::vector<std::unique_ptr<Transport>> MakeInProcessTransports(int size);

}  // namespace lockstep::dist
