// Which gradients travel together.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/device.h"
#include "core/dtype.h"

namespace lockstep::dist {

struct BucketItem {
  int64_t numel = 0;
  DType dtype = DType::kF32;
  Device device;
};

// On the host a call costs little beside its bytes, and small buckets hide better (PERFORMANCE.md);
// GPUs want large ones.
inline int64_t DefaultBucketBytes(Device device) {
  return int64_t{device.is_cuda() ? 25 : 2} << 20;
}

struct BucketLimits {
  // Of the first bucket, so that communication begins early, and of the last, whose sum nobody
  // hides.
  int64_t first_bytes = 1 << 20;
  int64_t bytes = 0;  // of the others; 0: DefaultBucketBytes
  // In elements: a bucket's size is a multiple of it. A power of two times the number of ranks
  // makes equal shards.
  int64_t multiple = 1;
};

// Elements of one dtype on one device, back to back but for padding.
struct Bucket {
  DType dtype = DType::kF32;
  Device device;
  std::vector<int64_t> items;    // in the order in which they become ready
  std::vector<int64_t> offsets;  // of each item, in elements; aligned for vector loads
  int64_t numel = 0;             // with padding
  int64_t bytes() const { return numel * SizeOf(dtype); }
};

// Each item begins at a multiple of this many bytes.
inline constexpr int64_t kBucketAlignment = 256;

// Fills buckets with `items`, which stand in the order in which they become ready: a bucket is
// closed once its size reaches the limit, so one item is never cut; the last one begins as late as
// reaches first_bytes. Buckets stand in the order in which they become complete. A pure function:
// ranks with equal items have equal plans.
std::vector<Bucket> PlanBuckets(std::span<const BucketItem> items, const BucketLimits& limits);

}  // namespace lockstep::dist
