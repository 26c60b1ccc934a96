// Bit flips: another process's memory, changed behind its back.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

// Overwrites `pattern` with `replacement`, of the same length, wherever it occurs in the process's
// writable memory, and returns how often it did; nullopt if this process may not write the other's
// memory. The process must be a child, and stopped (Subprocess::Stop).
std::optional<int> ReplaceInMemory(pid_t pid, std::string_view pattern,
                                   std::string_view replacement);

}  // namespace lockstep
