// Where two runs of one step part, found in what every operation gave (models/report/op_events.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/report/op_events.h"

namespace lockstep::models {

enum class PartingCause {
  kData,        // a rank reads other tokens
  kWeights,     // a weight differs before the step
  kRandom,      // random numbers have another seed, or belong to another site
  kKernel,      // an operation, or its backward, gives another result from equal tensors
  kCollective,  // ranks get another result from what they all give equally, or add it up otherwise
  kUpdate,      // the optimizer makes another weight of equal weights and gradients
  kUnseen,      // a tensor differs, and nothing that is observed has made it so
  kOtherOps,    // the runs do different things: plans, options, or programs differ
};
// "a kernel", "a collective", "the data"
std::string Describe(PartingCause cause);

// The first event that differs, though all that went into it is equal.
struct Parting {
  PartingCause cause = PartingCause::kUnseen;
  int64_t rank = 0;
  OpEvent a, b;        // of the two runs
  bool given = false;  // what it was given differs, rather than what it gave
  size_t tensor = 0;   // which of these
};

// The events of each rank. A rank that first differs in what others sent it is not to blame for
// that: so of the ranks' first differences, the earliest counts that its own rank made, or a
// collective, from what was equal on all ranks. None: no event differs.
std::optional<Parting> FindParting(const std::vector<std::vector<OpEvent>>& a,
                                   const std::vector<std::vector<OpEvent>>& b);

}  // namespace lockstep::models
