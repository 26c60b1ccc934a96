// Ways to add a bucket up over the ranks.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "dist/data_parallel/fixed_order.h"
#include "dist/process_group.h"

namespace lockstep::dist {

// Replaces a bucket (1-D, contiguous, its size a multiple of the group's) by the sum over all
// ranks, with the same bits on each. Called in a lane (ReducerOptions::lanes; each has a copy, and
// a group), for one bucket after the other in the same order on all ranks. Returns its operations,
// for the figures, each ordered before what follows (Work::Wait). A hook of one's own may do
// anything that is collective: compress, sum in two levels.
using BucketHook = std::function<std::vector<WorkPtr>(ProcessGroup& group, const Tensor& bucket)>;

// The group's own all-reduce: whatever order its library adds in.
BucketHook LibrarySum();

// Sends f32 as bf16, half the bytes: each rank's part is rounded, the parts are added in f32 in a
// fixed order, and the sum is rounded once more (relative error at most 2^-8 of the parts' sizes
// and of the sum). Buckets of other dtypes are summed as by LibrarySum.
BucketHook Bf16Sum();

// The same of several terms a rank, each like a bucket: the sum of the terms of all ranks is
// written to the last one of each rank.
using BucketSum =
    std::function<std::vector<WorkPtr>(ProcessGroup& group, std::span<const Tensor> terms)>;

// The plan's terms are exchanged in shards, all-to-all, added in the plan's order, and gathered:
// for one term a rank as many bytes as a ring's all-reduce. Keeps plan.rows shards of staging
// memory.
BucketSum OrderedSum(std::shared_ptr<const FixedOrderPlan> plan);

}  // namespace lockstep::dist
