// What is known of a cluster, in a file.
#pragma once

#include <cstdint>
#include <string>

#include "models/plan/cluster.h"

namespace lockstep::models {

std::string ToJson(const Cluster& cluster);
// So many of the file's devices. Ranks on a CPU share the processors that the machine had where it
// was written. Throws InputError.
Cluster ReadCluster(const std::string& path, int64_t devices);

}  // namespace lockstep::models
