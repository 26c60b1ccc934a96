// What ranks must agree on, compared: shapes at the start, values at any time. All of these are
// collective: every rank of the group calls them at the same point, and where ranks differ, every
// rank throws the same ReplicaError.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/module.h"
#include "dist/process_group.h"

namespace lockstep::dist {

// Ranks differ where they must not. what() names what differs, the ranks and what to do.
class ReplicaError : public Error {
 public:
  using Error::Error;
};

// The values of all ranks, in the order of the ranks. Every rank gives equally many.
std::vector<std::vector<int64_t>> GatherValues(ProcessGroup& group,
                                               std::span<const int64_t> values);
std::vector<std::vector<double>> GatherValues(ProcessGroup& group, std::span<const double> values);

// The texts of all ranks, each cut to `limit` bytes.
std::vector<std::string> GatherTexts(ProcessGroup& group, const std::string& text,
                                     int64_t limit = 256);

// Throws unless `value` is the same everywhere: "batches per epoch is 100 on ranks 0 and 2, 99 on
// rank 1". For what would otherwise let one rank wait for the others forever.
void CheckEqual(ProcessGroup& group, const std::string& what, int64_t value);

// Throws, naming the first that differs, unless all ranks have parameters and buffers of the same
// names, shapes, dtypes and trainability, in the same order.
void CheckSameShape(ProcessGroup& group, const Module& module);

// Overwrites the tensors of all ranks by those of `root`. Same shapes everywhere.
void BroadcastTensors(ProcessGroup& group, std::span<const Tensor> tensors, int root = 0);

// Throws unless the tensors have the same bits on all ranks. Names the first tensor that differs,
// the ranks that are alone with theirs, and how many more there are; `what` begins the sentence, as
// in "the weights after step 100".
void CheckSameBits(ProcessGroup& group, const std::string& what,
                   std::span<const std::pair<std::string, Tensor>> tensors);

// The gradient-sync check of data-parallel tutorials: after a backward that communicated, all ranks
// must have the same gradients. Parameters without a gradient count as such.
void CheckGradients(ProcessGroup& group, const Module& module);

// Throws ReplicaError: for what all ranks have found, and throw at the same place. Whoever is first
// would end its group, and cut off the call by which others are about to find out: hence a barrier,
// whose own end does not matter.
[[noreturn]] void ThrowReplicaError(ProcessGroup& group, const std::string& message);

}  // namespace lockstep::dist
