// Assigns gradients to buckets, which are sent as a whole.
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

// On the host a call costs little compared with its bytes, and small buckets overlap better
// (PERFORMANCE.md); GPUs need large ones.
inline int64_t DefaultBucketBytes(Device device) {
  return int64_t{device.is_cuda() ? 25 : 2} << 20;
}

struct BucketLimits {
  // The size of the first bucket, so that communication begins early, and of the last, whose sum
  // nothing hides.
  int64_t first_bytes = 1 << 20;
  int64_t bytes = 0;  // size of the others; 0: DefaultBucketBytes
  // A bucket's size in elements is a multiple of this. A power of two times the number of ranks
  // gives equal shards.
  int64_t multiple = 1;
};

// Elements of one dtype on one device, contiguous except for padding.
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

// Fills buckets with `items`, given in the order in which they become ready. A bucket is closed
// once its size reaches the limit, so items are never cut; the last one begins as late as possible
// while reaching first_bytes. Buckets are in the order in which they become complete. A pure
// function: ranks with equal items have equal plans.
std::vector<Bucket> PlanBuckets(std::span<const BucketItem> items, const BucketLimits& limits);

}  // namespace lockstep::dist
