#include "models/blame/compared_fingerprints.h"

#include <algorithm>

#include "core/error.h"

namespace lockstep::models {

ComparedFingerprints CompareFingerprints(const FingerprintsOfRun& a, const FingerprintsOfRun& b) {
  if (a.names.parameters != b.names.parameters) {
    throw InputError(
        "the runs have different parameters, so they cannot be equal: compare runs of "
        "one model");
  }
  const bool same_activations = a.names.activations == b.names.activations;
  ComparedFingerprints result;
  for (const auto& [step, of_a] : a.steps) {
    const auto of_b = b.steps.find(step);
    if (of_b == b.steps.end()) continue;
    for (size_t kind = 0; kind < kFingerprintKinds.size() && !result.differs; ++kind) {
      const auto &x = of_a.of_kind[kind], &y = of_b->second.of_kind[kind];
      if (x.size() != y.size() || (kind == 1 && !same_activations)) continue;
      result.tensors[kind] = std::max(result.tensors[kind], std::ssize(x));
      if (x == y) continue;
      result.differs = step;
      result.kind = kind;
      for (size_t i = 0; i < x.size(); ++i) {
        if (x[i] != y[i]) result.names.push_back(a.names.NameOf(kind, i));
      }
      if (kFingerprintKinds[kind] == std::string("gradients")) std::ranges::reverse(result.names);
    }
    if (result.differs) break;
    result.equal_steps.push_back(step);
  }
  if (!result.differs && result.equal_steps.empty()) {
    throw InputError(
        "the runs have fingerprints of no step in common: give both the same "
        "log.fingerprints, or one a multiple of the other's");
  }
  return result;
}

}  // namespace lockstep::models
