#include "dist/groups/gloo_group.h"

#include "core/system/environment.h"
#include "dist/control/socket.h"
#include "dist/groups/host_group.h"

namespace lockstep::dist {

std::shared_ptr<ProcessGroup> MakeGlooGroup(Store& store, int rank, int size,
                                            const GroupOptions& options,
                                            const GlooAddress& address) {
  return MakeHostGroup(MakeGlooTransport(store, options.name, rank, size, address, options.timeout),
                       store, options);
}

GlooAddress GlooAddressOf(const Rendezvous& rendezvous) {
  GlooAddress address;
  address.interface = EnvironmentVariable("LOCKSTEP_INTERFACE").value_or("");
  if (address.interface.empty()) {
    address.host = AddressTowards(rendezvous.master_addr, rendezvous.master_port);
  }
  return address;
}

std::shared_ptr<ProcessGroup> MakeGlooGroup(World& world, const GroupOptions& options) {
  return MakeGlooGroup(world.store(), world.rank(), world.size(), options,
                       GlooAddressOf(world.rendezvous()));
}

}  // namespace lockstep::dist
