// A process group on the host: a thread that runs operations over a transport, one after the other.
#pragma once

#include <memory>

#include "dist/control/store.h"
#include "dist/groups/transport.h"
#include "dist/process_group.h"

namespace lockstep::dist {

// A group for CPU tensors. The transport's ranks meet on the store, of which the group makes its
// own handles; its keys begin with the group's name. `status`: see ProcessGroup.
std::shared_ptr<ProcessGroup> MakeHostGroup(std::unique_ptr<Transport> transport, Store& store,
                                            const GroupOptions& options,
                                            std::shared_ptr<RankStatus> status = nullptr);

}  // namespace lockstep::dist
