// A process group on the host: a thread that runs operations over a transport, one after the other.
#pragma once

#include <memory>

#include "dist/control/control_plane.h"
#include "dist/groups/transport.h"
#include "dist/process_group.h"

namespace lockstep::dist {

// A group for CPU tensors, of the transport's ranks.
std::shared_ptr<ProcessGroup> MakeHostGroup(std::unique_ptr<Transport> transport,
                                            std::shared_ptr<ControlPlane> control,
                                            const GroupOptions& options);

}  // namespace lockstep::dist
