#include "dist/groups/tcp_group.h"

#include <utility>

#include "dist/groups/host_group.h"
#include "dist/groups/tcp_transport.h"

namespace lockstep::dist {

std::shared_ptr<ProcessGroup> MakeTcpGroup(World& world, const GroupOptions& options) {
  return MakeTcpGroup(world.control(), options);
}

std::shared_ptr<ProcessGroup> MakeTcpGroup(std::shared_ptr<ControlPlane> control,
                                           const GroupOptions& options) {
  auto transport = MakeTcpTransport(control, options.name);
  return MakeHostGroup(std::move(transport), std::move(control), options);
}

}  // namespace lockstep::dist
