// Environment variables.
#pragma once

#include <map>
#include <optional>
#include <string>

namespace lockstep {

// All variables of a process, or those that a test makes up.
using Environment = std::map<std::string, std::string>;
Environment ProcessEnvironment();

// nullopt for a variable that is unset, or empty.
std::optional<std::string> Lookup(const Environment& environment, const std::string& name);
// The same, in this process's environment.
std::optional<std::string> EnvironmentVariable(const std::string& name);

}  // namespace lockstep
