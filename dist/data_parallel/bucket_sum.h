// Ways to add a bucket up over the ranks.
#pragma once

#include <functional>
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

// The fixed order (dist/data_parallel/fixed_order.h): shards are exchanged all-to-all, added by
// rank_adds, and gathered. As many bytes as a ring's all-reduce. Keeps a bucket's worth of staging
// memory.
BucketHook OrderedSum(const FixedOrder& order);

// Sends f32 as bf16, half the bytes: each rank's part is rounded, the parts are added in f32 in a
// fixed order, and the sum is rounded once more (relative error at most 2^-8 of the parts' sizes
// and of the sum). Buckets of other dtypes are summed as by LibrarySum.
BucketHook Bf16Sum();

}  // namespace lockstep::dist
