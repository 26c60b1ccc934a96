// Messages between threads.
#pragma once

#include <memory>
#include <vector>

#include "dist/groups/transport.h"

namespace lockstep::dist {

// One transport per rank. A rank that destroys its own is lost to the others.
std::vector<std::unique_ptr<Transport>> MakeInProcessTransports(int size);

}  // namespace lockstep::dist
