// Where the fingerprints of two runs part.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/report/fingerprints.h"

namespace lockstep::models {

struct ComparedFingerprints {
  std::vector<int64_t> equal_steps;  // that both have, before the first that differs
  std::optional<int64_t> differs;    // the first step that does; none: the runs are equal
  // Of each kind (kFingerprintKinds), how many tensors were compared in the step with most.
  std::array<int64_t, kFingerprintKinds.size()> tensors{};
  size_t kind = 0;                 // what differs first in it
  std::vector<std::string> names;  // the tensors of that kind that differ, in order
};

// Compares the steps that both have. Of a step, what is computed first counts: tokens, activations,
// gradients, weights; what only one of the runs has is left out. Of gradients, backward gives the
// last layers' first. InputError if the runs have different tensors, or no step in common.
ComparedFingerprints CompareFingerprints(const FingerprintsOfRun& a, const FingerprintsOfRun& b);

}  // namespace lockstep::models
