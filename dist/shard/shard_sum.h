// How the gradients of a sharded model are summed: over the micro-batches of a step, the ranks that
// shard a copy of the model, and the copies.
#pragma once

#include <cstdint>
#include <vector>

#include "dist/data_parallel/fixed_order.h"
#include "dist/data_parallel/reducer.h"

namespace lockstep::dist {

// Which gradients a rank keeps between the micro-batches of a step.
enum class Accumulate {
  kShards,  // each backward scatters its gradients: a rank keeps the shards that it owns
  kWhole,   // only the last backward does: a rank keeps whole gradients, and sends them once
};

// `shards` ranks shard a copy of the model; there are `copies`. Rank `copy * shards + shard` of all
// has that shard of that copy.
struct ShardSizes {
  int64_t shards = 1, copies = 1;
};

// Two sums, one after the other: of whole gradients over the ranks that shard a copy, by a
// reduce-scatter, and of the resulting shards over the copies. A rank makes the first sum once for
// each of its terms in the second. Together they are the fixed-order sum of all micro-batches
// (dist/data_parallel/fixed_order.h), whose upper bits name a leaf of the first sum and whose lower
// bits one of the second: micro-batch i * m + j, with m leaves in the second.
//
// As an example, 16 micro-batches on 4 ranks, without copies. kShards: each backward scatters, so
// the first sum has 4 leaves, the ranks; rank r computes the micro-batches 4 r + j, and adds the 4
// shards that the second sum consists of. kWhole: rank r computes the micro-batches 4 j + r, adds
// them locally, and there is one scatter.
struct ShardSumPlan {
  FixedOrderPlan within;  // one copy; ranks are shards
  FixedOrderPlan across;  // the copies
  // A rank's micro-batches in the order in which it computes them. The first sum runs through its
  // micro-steps once for each of the second's.
  std::vector<int64_t> MicroOrder(int64_t shard, int64_t copy) const;
};

// With kFast the micro-batches are assigned in the same way, but gradients are added as they come,
// in one buffer each. The experts of mixtures are split across `experts` neighbouring ranks of a
// copy: the leaves of the first sum are then assigned as by AssignForExperts
// (dist/expert/expert_parallel.h), so that what they have for an expert in a micro-step is a leaf
// of the sum over a fraction of the micro-batches, and of `sizes.shards`. Throws ArgumentError
// unless each rank has equally many micro-batches, and with kOrdered if the two sums would not make
// up the fixed-order sum.
ShardSumPlan PlanShardSum(int64_t micro_batches, const ShardSizes& sizes, Accumulate accumulate,
                          GradientSum sum, int64_t experts = 1);

}  // namespace lockstep::dist
