// Messages over TCP.
#pragma once

#include <memory>
#include <string>

#include "dist/control/control_plane.h"
#include "dist/groups/transport.h"

namespace lockstep::dist {

// This rank's end of a group of these ranks of the control plane. Returns at once, without a
// connection: two ranks connect when messages between them are first to be moved, and only they
// need to take part. Run uses no thread but its caller's. Besides TransportError, Run throws
// NoDescriptorsError if this process cannot open another connection. The name must be new, or that
// of a group that all ranks have left.
std::unique_ptr<Transport> MakeTcpTransport(std::shared_ptr<ControlPlane> control,
                                            const std::string& name, std::vector<int> members);

}  // namespace lockstep::dist
