// Reads the Kubernetes manifests of models/examples/clusters.
#pragma once

#include <string>
#include <vector>

#include "core/io/json.h"

namespace lockstep {

// The documents of a file in the part of YAML that those are written in: mappings and sequences in
// blocks, sequences of scalars in brackets, and scalars on one line. Throws std::runtime_error for
// anything else.
std::vector<Json> ReadManifests(const std::string& text);

}  // namespace lockstep
