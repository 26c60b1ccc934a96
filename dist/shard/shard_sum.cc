#include "dist/shard/shard_sum.h"

#include <bit>

#include "core/error.h"
#include "dist/expert/expert_parallel.h"

namespace lockstep::dist {
namespace {

// The plan of n terms over the ranks; with kFast each rank adds its own in a single buffer.
FixedOrderPlan Plan(int64_t n, int64_t ranks, GradientSum sum, int64_t experts = 1) {
  FixedOrderPlan plan = PlanFixedOrder(AssignForExperts(n, ranks, experts, /*ordered=*/true));
  if (sum == GradientSum::kOrdered) return plan;
  for (FixedOrderPlan::Rank& rank : plan.ranks) {
    for (auto& step : rank.micro_steps) step = {.micro_batch = step.micro_batch, .take_up = {}};
    rank.terms = {0};
    rank.buffers = 1;
  }
  return plan;
}

}  // namespace

std::vector<int64_t> ShardSumPlan::MicroOrder(int64_t shard, int64_t copy) const {
  int64_t leaves = 0;  // of the second sum
  for (const auto& rank : across.ranks) leaves += std::ssize(rank.micro_steps);
  std::vector<int64_t> order;
  for (const auto& second : across.ranks[copy].micro_steps) {
    for (const auto& first : within.ranks[shard].micro_steps) {
      order.push_back(first.micro_batch * leaves + second.micro_batch);
    }
  }
  return order;
}

ShardSumPlan PlanShardSum(int64_t micro_batches, const ShardSizes& sizes, Accumulate accumulate,
                          GradientSum sum, int64_t experts) {
  const auto& [shards, copies] = sizes;
  LS_CHECK(experts >= 1 && shards % experts == 0, "the ", experts,
           " data ranks that split the experts (parallel.ep / parallel.cp) must divide the ",
           shards, " that shard a copy of the model (parallel.shard_ranks)");
  LS_CHECK(micro_batches >= 1 && micro_batches % (shards * copies) == 0, "a step of ",
           micro_batches, " micro-batches cannot be partitioned equally across ", shards * copies,
           " ranks, as sharding needs it: use a multiple of ", shards * copies,
           " micro-batches, or another number of ranks");
  const int64_t first = accumulate == Accumulate::kShards ? shards : micro_batches / copies;
  const int64_t second = micro_batches / first;
  // Leaf i of the first sum stands for the leaves i * second + j of all: they are what is left of
  // the fixed-order sum after as many halvings as `first` has bits.
  LS_CHECK(sum == GradientSum::kFast || second == 1 || std::has_single_bit<uint64_t>(first),
           "the ordered sum of ", micro_batches, " micro-batches over ", shards,
           " ranks that shard the model",
           copies > 1 ? StrCat(", and ", copies, " copies of it,") : "", " needs a power of two ",
           accumulate == Accumulate::kShards
               ? "of these ranks, since each backward scatters its gradients: use that many, or "
                 "one micro-batch per rank, or scatter whole gradients once a step"
               : "of micro-batches in each copy: use that many, or scatter after each backward",
           ", or give up the fixed order");
  return {.within = Plan(first, shards, sum, experts), .across = Plan(second, copies, sum)};
}

}  // namespace lockstep::dist
