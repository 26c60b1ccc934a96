// Ranks as threads of the test.
#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "dist/process_group.h"

namespace lockstep::dist::test {

// Which group, and what its ranks meet on.
enum class Kind { kInProcess, kGloo, kGlooOverTcpStore };
std::ostream& operator<<(std::ostream& out, Kind kind);

// Makes a group on a thread per rank, runs the body there and destroys the group. The errors of the
// ranks, "" for none. A body that throws takes its group with it as an exception would.
std::vector<std::string> ErrorsOf(Kind kind, int size,
                                  const std::function<void(ProcessGroup&)>& body,
                                  const GroupOptions& options = {});

// The same where no rank may throw: fails the test with what they throw.
void RunRanks(Kind kind, int size, const std::function<void(ProcessGroup&)>& body,
              const GroupOptions& options = {});

}  // namespace lockstep::dist::test
