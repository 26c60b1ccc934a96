// Reads the Kubernetes manifests of models/examples/clusters.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace lockstep {

// The documents of a file in the part of YAML that those are written in: mappings and sequences in
// blocks, sequences of scalars in brackets, and scalars on one line. Throws std::runtime_error for
// anything else.
std::vector<nlohmann::json> ReadManifests(const std::string& text);

}  // namespace lockstep
