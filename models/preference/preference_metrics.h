// What is measured on pairs of answers.
#pragma once

namespace lockstep::models {

// Means over the pairs of a batch, a step or an evaluation.
struct PreferenceMetrics {
  double loss = 0;
  double chosen = 0, rejected = 0;  // rewards: beta (log p - log p of the reference)
  double accuracy = 0;              // of a pair: 1 if its chosen answer has the larger reward
  double margin() const { return chosen - rejected; }
};

}  // namespace lockstep::models
