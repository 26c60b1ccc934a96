// A store in a folder that all ranks see, where no port can be opened.
#pragma once

#include <memory>
#include <string>

#include "dist/control/store.h"

namespace lockstep::dist {

// One file per key, written elsewhere and moved or linked into place, so that no reader sees a part
// of it; what is waited for is looked for every few milliseconds, and after a while four times a
// second. The file system must have atomic
// rename and link, and flock for Add: local ones and NFS 4 do.
//
// Rank 0 claims the folder, creating it if need be. StoreError if it was claimed before, naming by
// whom: each run needs a folder of its own. Other ranks wait up to `timeout` for that claim.
std::unique_ptr<Store> OpenFileStore(const std::string& folder, int rank,
                                     std::chrono::milliseconds timeout);

}  // namespace lockstep::dist
