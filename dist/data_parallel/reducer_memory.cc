#include "dist/data_parallel/reducer_memory.h"

#include <algorithm>

namespace lockstep::dist {

ReducerMemory PlanReducerMemory(std::span<const std::shared_ptr<Parameter>> parameters,
                                const ReducerOptions& options, int64_t ranks, Device device) {
  // Parameters usually become ready from the last to the first.
  std::vector<BucketItem> items;
  for (size_t i = parameters.size(); i-- > 0;) {
    if (!parameters[i]->trainable()) continue;
    const Tensor& value = parameters[i]->value();
    items.push_back({.numel = value.numel(), .dtype = SumDType(*parameters[i]), .device = device});
  }
  ReducerMemory memory;
  memory.buckets = PlanBuckets(items, {.first_bytes = options.first_bucket_bytes,
                                       .bytes = options.bucket_bytes,
                                       .multiple = 64 * ranks});
  // Per bucket. Bf16Sum holds bf16 copies for sending and receiving, and the parts in f32.
  double worth = options.hook ? 2 : 0;
  if (options.sum == GradientSum::kOrdered) {
    const FixedOrderPlan plan = PlanFixedOrder(
        options.assignment.empty() ? AssignSubtrees(std::max(options.micro_batches, ranks), ranks)
                                   : options.assignment);
    for (const auto& rank : plan.ranks) memory.buffers = std::max(memory.buffers, rank.buffers);
    worth = static_cast<double>(plan.rows) / static_cast<double>(ranks);
  }
  if (ranks == 1) return memory;
  const int64_t lanes = LaneCount(options, ranks, device);
  for (int64_t lane = 0; lane < lanes; ++lane) {
    int64_t largest = 0;
    for (size_t b = static_cast<size_t>(lane); b < memory.buckets.size();
         b += static_cast<size_t>(lanes)) {
      largest = std::max(largest, memory.buckets[b].bytes());
    }
    memory.staging_bytes += static_cast<int64_t>(worth * static_cast<double>(largest));
  }
  return memory;
}

}  // namespace lockstep::dist
