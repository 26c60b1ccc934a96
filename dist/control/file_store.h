// A store in a folder that all ranks share, for machines where no port can be opened.
#pragma once

#include <memory>
#include <string>

#include "dist/control/store.h"

namespace lockstep::dist {

// One file per key, written elsewhere and then moved or linked into place, so that no reader sees a
// partial value. Waiting polls every few milliseconds at first, later four times a second. The file
// system must support atomic rename and link, and flock for Add, as local ones and NFS 4 do.
//
// Rank 0 claims the folder and creates it if necessary. Throws StoreError, naming the owner, if it
// was claimed before: each run needs its own folder. Other ranks wait up to `timeout` for that
// claim.
std::unique_ptr<Store> OpenFileStore(const std::string& folder, int rank,
                                     std::chrono::milliseconds timeout);

}  // namespace lockstep::dist
