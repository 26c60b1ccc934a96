// Checks that ranks agree: on shapes at the start, on values at any time. All of these are
// collective: every rank of the group must call them at the same point, and if ranks differ, every
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

// Ranks differ where they must not. what() names the difference, the ranks and a remedy.
class ReplicaError : public Error {
 public:
  using Error::Error;
};

// The values of all ranks, in rank order. Every rank must pass the same number of values.
std::vector<std::vector<int64_t>> GatherValues(ProcessGroup& group,
                                               std::span<const int64_t> values);
std::vector<std::vector<double>> GatherValues(ProcessGroup& group, std::span<const double> values);

// Each rank's tensor, in rank order: [size, ...]. They are of one shape. Waits as Work::Wait does;
// no gradient.
Tensor GatherTensors(ProcessGroup& group, const Tensor& mine, const std::string& purpose = {});

// The texts of all ranks, each cut to `limit` bytes; 0: whole, for one more call, and as many bytes
// of each as the longest has.
std::vector<std::string> GatherTexts(ProcessGroup& group, const std::string& text,
                                     int64_t limit = 0);

// Throws unless `value` is the same on all ranks: "batches per epoch is 100 on ranks 0 and 2, 99 on
// rank 1". For differences that would otherwise leave one rank waiting for the others forever.
void CheckEqual(ProcessGroup& group, const std::string& what, int64_t value);

// Throws, naming the first difference, unless all ranks have parameters and buffers of the same
// names, shapes, dtypes and trainability, in the same order.
void CheckSameShape(ProcessGroup& group, const Module& module);

// Overwrites the tensors of all ranks with those of `root`. Shapes must be the same on all ranks.
void BroadcastTensors(ProcessGroup& group, std::span<const Tensor> tensors, int root = 0);

// Throws unless the tensors have the same bits on all ranks. Names the first tensor that differs,
// the ranks that deviate, and how many more tensors differ; `what` begins the sentence, as in "the
// weights after step 100". With a `step`, only ranks that are a multiple of it apart must have the
// same.
void CheckSameBits(ProcessGroup& group, const std::string& what,
                   std::span<const std::pair<std::string, Tensor>> tensors, int64_t step = 1);

// Throws unless all ranks have the same gradients, as they must after a backward that communicated.
// A parameter must have a gradient on all ranks or on none.
void CheckGradients(ProcessGroup& group, const Module& module);

// Call it before an exception that all ranks have found a reason for, and throw, at the same point.
// It waits at a barrier, whose outcome does not matter: otherwise the first rank to throw would end
// its group and cut off the call by which the others are about to find out.
void MeetBeforeThrowing(ProcessGroup& group);
// Does so, and throws ReplicaError.
[[noreturn]] void ThrowReplicaError(ProcessGroup& group, const std::string& message);

}  // namespace lockstep::dist
