#include "dist/bucket_plan.h"

#include <algorithm>

#include "core/error.h"

namespace lockstep::dist {
namespace {

int64_t RoundUp(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

bool SameKind(const Bucket& bucket, const BucketItem& item) {
  return bucket.dtype == item.dtype && bucket.device == item.device;
}

}  // namespace

std::vector<Bucket> PlanBuckets(std::span<const BucketItem> items, const BucketLimits& limits) {
  LS_CHECK(limits.first_bytes >= 1 && limits.bytes >= 0 && limits.multiple >= 1, "buckets of ",
           limits.first_bytes, " and ", limits.bytes, " bytes, in multiples of ", limits.multiple,
           " elements: none may be negative, and only the second 0");
  std::vector<Bucket> closed, open;
  for (int64_t i = 0; i < std::ssize(items); ++i) {
    const BucketItem& item = items[i];
    auto bucket =
        std::find_if(open.begin(), open.end(), [&](const Bucket& b) { return SameKind(b, item); });
    if (bucket == open.end()) {
      open.push_back({.dtype = item.dtype, .device = item.device, .items = {}, .offsets = {}});
      bucket = open.end() - 1;
    }
    bucket->items.push_back(i);
    bucket->offsets.push_back(bucket->numel);
    bucket->numel += RoundUp(item.numel, kBucketAlignment / SizeOf(item.dtype));
    const int64_t others = limits.bytes > 0 ? limits.bytes : DefaultBucketBytes(item.device);
    if (bucket->bytes() < (closed.empty() ? limits.first_bytes : others)) continue;
    closed.push_back(std::move(*bucket));
    open.erase(bucket);
  }
  closed.insert(closed.end(), open.begin(), open.end());
  std::stable_sort(closed.begin(), closed.end(), [](const Bucket& a, const Bucket& b) {
    return a.items.back() < b.items.back();
  });
  for (Bucket& b : closed) b.numel = RoundUp(b.numel, limits.multiple);
  return closed;
}

}  // namespace lockstep::dist
