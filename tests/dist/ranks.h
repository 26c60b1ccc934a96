// Ranks as threads of the test.
#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "dist/process_group.h"

namespace lockstep::dist::test {

// The kind of group, and of store on which its ranks meet.
enum class Kind { kInProcess, kGloo, kGlooOverTcpStore };
std::ostream& operator<<(std::ostream& out, Kind kind);

// On one thread per rank, makes a group, runs the body and destroys the group, during the exception
// if the body throws. Returns the ranks' errors, "" for none.
std::vector<std::string> ErrorsOf(Kind kind, int size,
                                  const std::function<void(ProcessGroup&)>& body,
                                  const GroupOptions& options = {});

// The same for ranks that must not throw: fails the test with their errors.
void RunRanks(Kind kind, int size, const std::function<void(ProcessGroup&)>& body,
              const GroupOptions& options = {});

}  // namespace lockstep::dist::test
