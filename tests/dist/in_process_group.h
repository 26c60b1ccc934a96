// Process groups whose ranks are threads of one process: for tests.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "dist/process_group.h"

namespace lockstep::dist {

// One group per rank, for CPU tensors; only the thread that plays rank r may use and destroy rank
// r's. They share nothing but their messages, so that they behave as processes do.
std::vector<std::shared_ptr<ProcessGroup>> MakeInProcessGroups(int size,
                                                               const GroupOptions& options = {});

// Runs `body` on one thread per rank and returns when all have ended. A body that throws aborts its
// group. Rethrows the first error that is not a consequence of another rank's.
void RunInProcess(int size, const std::function<void(ProcessGroup&)>& body,
                  const GroupOptions& options = {});

}  // namespace lockstep::dist
