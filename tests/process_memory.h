// Bit flips: another process's memory, changed behind its back.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

// Overwrites `pattern` by `replacement`, of the same length, wherever it lies in the memory that
// the process writes, and returns how often it did; nullopt where this process may not write that
// of the other. The process is stopped (Subprocess::Stop), and a child.
std::optional<int> ReplaceInMemory(pid_t pid, std::string_view pattern,
                                   std::string_view replacement);

}  // namespace lockstep
