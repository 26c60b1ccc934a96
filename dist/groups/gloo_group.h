// Process groups over TCP, for CPU tensors.
#pragma once

#include <memory>

#include "dist/control/store.h"
#include "dist/groups/gloo_transport.h"
#include "dist/process_group.h"
#include "dist/world.h"

namespace lockstep::dist {

// Collective; the ranks meet on the store under options.name, which must be new for each group.
// Gloo only moves the bytes; the algorithms, the sums and the comparison of every call are
// Lockstep's (dist/groups/host_collectives.h).
std::shared_ptr<ProcessGroup> MakeGlooGroup(Store& store, int rank, int size,
                                            const GroupOptions& options,
                                            const GlooAddress& address = {});

// The address from which this machine reaches rank 0's, at which its ranks can be reached in turn.
// LOCKSTEP_INTERFACE names a network interface instead.
GlooAddress GlooAddressOf(const Rendezvous& rendezvous);

// A group of all ranks of the world.
std::shared_ptr<ProcessGroup> MakeGlooGroup(World& world, const GroupOptions& options = {});

}  // namespace lockstep::dist
