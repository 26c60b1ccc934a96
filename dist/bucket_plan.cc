#include "dist/bucket_plan.h"

#include <algorithm>

#include "core/error.h"

namespace lockstep::dist {
namespace {

int64_t RoundUp(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

bool SameKind(const Bucket& bucket, const BucketItem& item) {
  return bucket.dtype == item.dtype && bucket.device == item.device;
}

bool IsReadyBefore(const Bucket& a, const Bucket& b) { return a.items.back() < b.items.back(); }

// Makes a bucket of its own of the end of the bucket that is complete last: of its last items, as
// many as it takes to reach `bytes`.
void SplitLast(int64_t bytes, std::vector<Bucket>* buckets) {
  const auto last = std::max_element(buckets->begin(), buckets->end(), IsReadyBefore);
  if (last == buckets->end()) return;
  auto& [dtype, device, items, offsets, numel] = *last;
  auto first = offsets.end() - 1;
  while (first > offsets.begin() && (numel - *first) * SizeOf(dtype) < bytes) --first;
  const auto stay = first - offsets.begin();
  if (stay == 0) return;
  const int64_t begin = *first;
  Bucket end{.dtype = dtype,
             .device = device,
             .items = {items.begin() + stay, items.end()},
             .offsets = {first, offsets.end()},
             .numel = numel - begin};
  for (int64_t& offset : end.offsets) offset -= begin;
  items.erase(items.begin() + stay, items.end());
  offsets.erase(first, offsets.end());
  numel = begin;
  buckets->push_back(std::move(end));
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
  SplitLast(limits.first_bytes, &closed);
  std::stable_sort(closed.begin(), closed.end(), IsReadyBefore);
  for (Bucket& b : closed) b.numel = RoundUp(b.numel, limits.multiple);
  return closed;
}

}  // namespace lockstep::dist
