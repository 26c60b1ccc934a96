// Ranks as threads of the test.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dist/control/control_plane.h"
#include "dist/control/socket.h"
#include "dist/groups/transport.h"
#include "dist/process_group.h"
#include "tests/dist/in_process.h"

namespace lockstep::dist::test {

// By when what a test waits for must have happened, however busy the machine is.
inline Socket::Deadline Soon() {
  return std::chrono::steady_clock::now() + std::chrono::minutes(1);
}

// What ranks make their groups from.
struct End {
  std::shared_ptr<ControlPlane> control;
  std::unique_ptr<Transport> transport;
};
// By rank. Destroyed from the last to the first, because a rank's control plane leaves after those
// below it.
struct Ends : std::vector<End> {
  Ends() = default;
  Ends(Ends&&) = default;
  ~Ends() {
    while (!empty()) pop_back();
  }
};
Ends MakeEnds(int size, const LocalPlanesOptions& options = {});

// On one thread per rank, makes a group, runs the body and destroys the group, during the exception
// if the body throws. Returns the ranks' errors, "" for none.
std::vector<std::string> ErrorsOf(int size, const std::function<void(ProcessGroup&)>& body,
                                  const GroupOptions& options = {});

// The same for ranks that must not throw: fails the test with their errors.
void RunRanks(int size, const std::function<void(ProcessGroup&)>& body,
              const GroupOptions& options = {});

}  // namespace lockstep::dist::test
