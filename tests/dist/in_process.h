// Ranks that are threads of this process: their control planes and process groups.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dist/control/control_plane.h"
#include "dist/process_group.h"

namespace lockstep::dist {

struct LocalPlanesOptions {
  // Threads that serve all of them, where each process has one.
  int loops = 1;
  std::chrono::milliseconds timeout = std::chrono::minutes(5), heartbeat{0};
  int fan_out = RankTree::kFanOut;
  // Without data connections, only ranks to which others attach need to listen.
  bool data = true;
  // As ControlPlane::Options::on_open.
  std::function<void(int rank, const std::string& refusal)> on_open = [](int, const std::string&) {
  };
};

// By rank; they have begun to meet, over the loopback device. Destroy each on its rank's thread, or
// from the last to the first, because a rank leaves after those below it in the tree. Throws
// ConnectionError if descriptors are missing.
std::vector<std::shared_ptr<ControlPlane>> MakeLocalPlanes(int size,
                                                           const LocalPlanesOptions& options = {});

// One group per rank, for CPU tensors; only the thread that plays rank r may use and destroy rank
// r's. They share nothing but their messages, so that they behave as processes do.
std::vector<std::shared_ptr<ProcessGroup>> MakeInProcessGroups(int size,
                                                               const GroupOptions& options = {});

// Runs `body` on one thread per rank and returns when all have ended. A body that throws aborts its
// group. Rethrows the first error that is not a consequence of another rank's.
void RunInProcess(int size, const std::function<void(ProcessGroup&)>& body,
                  const GroupOptions& options = {});

}  // namespace lockstep::dist
