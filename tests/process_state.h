// What a process uses of the system: memory, file descriptors, threads.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <ostream>

namespace lockstep::test {

struct ProcessState {
  int64_t resident_bytes = 0, descriptors = 0, threads = 0;
  double cpu_seconds = 0;  // so far, of all threads
};
std::ostream& operator<<(std::ostream& out, const ProcessState& state);

// From /proc; of this process by default.
ProcessState ProcessStateOf(pid_t pid = 0);
// After what the allocator keeps for later has been given back.
int64_t ResidentBytes();

}  // namespace lockstep::test
