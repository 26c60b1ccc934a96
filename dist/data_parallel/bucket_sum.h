// Ways to sum a bucket over the ranks.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dist/data_parallel/fixed_order.h"
#include "dist/process_group.h"

namespace lockstep::dist {

// Replaces a bucket (1-D, contiguous, its size a multiple of the group's) by the sum over all
// ranks, with the same bits on each. Called in a lane (ReducerOptions::lanes; each has its own copy
// and group) for one bucket at a time, in the same order on all ranks. Returns its operations, for
// timing; it must have called Work::Wait on each. A custom hook may do anything collective:
// compress, sum in two levels. `purpose` names the bucket: pass it to the
// group's calls, so that their errors name it too.
using BucketHook = std::function<std::vector<WorkPtr>(ProcessGroup& group, const Tensor& bucket,
                                                      const std::string& purpose)>;

// The group's own all-reduce, in whatever order its library adds.
BucketHook LibrarySum();

// Sends f32 as bf16, half the bytes: each rank's values are rounded, added in f32 in a fixed order,
// and the sum is rounded once more (errors of at most 2^-8 relative to the addends and to the sum).
// Buckets of other dtypes are summed as by LibrarySum.
BucketHook Bf16Sum();

// The same for several terms per rank, each shaped like the bucket: the sum of all ranks' terms is
// written to each rank's last term.
using BucketSum = std::function<std::vector<WorkPtr>(
    ProcessGroup& group, std::span<const Tensor> terms, const std::string& purpose)>;

// The first half of the ordered sum: exchanges the plan's terms in shards, all-to-all, and adds
// them in the plan's order. Keeps plan.rows shards of staging memory; a copy starts with none.
class OrderedScatter {
 public:
  explicit OrderedScatter(std::shared_ptr<const FixedOrderPlan> plan) : plan_(std::move(plan)) {}
  OrderedScatter(const OrderedScatter& other) : plan_(other.plan_) {}
  OrderedScatter& operator=(const OrderedScatter&) = delete;
  // This rank's shard of the sum, [numel / ranks], valid until the next call. `works` (BucketHook)
  // gets the operations.
  Tensor operator()(ProcessGroup& group, std::span<const Tensor> terms, const std::string& purpose,
                    std::vector<WorkPtr>& works);

 private:
  std::shared_ptr<const FixedOrderPlan> plan_;
  Tensor staging_;
};

// The plan's terms are exchanged in shards, all-to-all, added in the plan's order, and gathered:
// with one term per rank that sends as many bytes as a ring all-reduce. Keeps plan.rows shards of
// staging memory.
BucketSum OrderedSum(std::shared_ptr<const FixedOrderPlan> plan);

}  // namespace lockstep::dist
