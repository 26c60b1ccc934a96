// Process groups over TCP, for CPU tensors.
#pragma once

#include <memory>

#include "dist/process_group.h"
#include "dist/world.h"

namespace lockstep::dist {

// A group of all ranks of the world. options.name must be new, or that of a group that all ranks
// have left. Does not wait for the other ranks: they connect when they first talk to each other.
std::shared_ptr<ProcessGroup> MakeTcpGroup(World& world, const GroupOptions& options = {});
std::shared_ptr<ProcessGroup> MakeTcpGroup(std::shared_ptr<ControlPlane> control,
                                           const GroupOptions& options = {});

}  // namespace lockstep::dist
