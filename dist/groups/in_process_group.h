// Process groups whose ranks are threads of one process: for tests.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "dist/process_group.h"

namespace lockstep::dist {

// One group per rank, for CPU tensors; rank r's is to be used, and destroyed, by the thread that
// plays rank r. They share nothing but what they exchange, so that tests of them are tests of what
// processes do.
std::vector<std::shared_ptr<ProcessGroup>> MakeInProcessGroups(int size,
                                                               const GroupOptions& options = {});

// Runs `body` on a thread per rank and returns when all have ended. A body that throws aborts its
// group; then the first error that is not the consequence of another rank's is thrown.
void RunInProcess(int size, const std::function<void(ProcessGroup&)>& body,
                  const GroupOptions& options = {});

}  // namespace lockstep::dist
