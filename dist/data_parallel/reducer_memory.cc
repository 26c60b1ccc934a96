#include "dist/data_parallel/reducer_memory.h"

#include <algorithm>

namespace lockstep::dist {

ReducerMemory PlanReducerMemory(std::span<const std::shared_ptr<Parameter>> parameters,
                                const ReducerOptions& options, int64_t ranks, Device device) {
  // They become ready from the last to the first, as a rule.
  std::vector<BucketItem> items;
  for (size_t i = parameters.size(); i-- > 0;) {
    if (!parameters[i]->trainable()) continue;
    const Tensor& value = parameters[i]->value();
    items.push_back({.numel = value.numel(),
                     .dtype = SizeOf(value.dtype()) == 2 ? DType::kF32 : value.dtype(),
                     .device = device});
  }
  ReducerMemory memory;
  memory.buckets = PlanBuckets(items, {.first_bytes = options.first_bucket_bytes,
                                       .bytes = options.bucket_bytes,
                                       .multiple = 64 * ranks});
  const bool ordered = options.sum == GradientSum::kOrdered;
  if (ordered) memory.buffers = FixedOrder(ranks, options.accum).buffers();
  // OrderedSum has a bucket's worth, Bf16Sum two (a part in bf16 each way, and the parts in f32);
  // the host's own sum has the parts of all ranks, a GPU's none.
  const int64_t worth = options.hook ? 2 : ordered || device.is_cpu() ? 1 : 0;
  if (ranks == 1 || worth == 0) return memory;
  const int64_t lanes = !device.is_cpu()    ? 1
                        : options.lanes > 0 ? options.lanes
                        : options.hook      ? 1
                                            : 2;
  for (int64_t lane = 0; lane < lanes; ++lane) {
    int64_t largest = 0;
    for (size_t b = static_cast<size_t>(lane); b < memory.buckets.size();
         b += static_cast<size_t>(lanes)) {
      largest = std::max(largest, memory.buckets[b].bytes());
    }
    memory.staging_bytes += worth * largest;
  }
  return memory;
}

}  // namespace lockstep::dist
