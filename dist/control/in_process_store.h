// A store for ranks that are threads of one process.
#pragma once

#include "dist/control/store.h"

namespace lockstep::dist {

// Makes the first handle; Clone makes those of other ranks.
std::unique_ptr<Store> MakeInProcessStore();

}  // namespace lockstep::dist
