#include "dist/data_parallel/bucket_plan.h"

#include <algorithm>

#include "core/error.h"
#include "core/meta_memory.h"
#include "core/round_up.h"

namespace lockstep::dist {
namespace {

int64_t PaddedNumel(const BucketItem& item) {
  return RoundUp(item.numel, kBucketAlignment / SizeOf(item.dtype));
}

template <class A>
bool SameKind(const A& a, const BucketItem& item) {
  return a.dtype == item.dtype && a.device == item.device;
}

bool IsReadyBefore(const Bucket& a, const Bucket& b) { return a.items.back() < b.items.back(); }

// Where the last bucket begins: it holds the last item and as many items of the same kind before it
// as it takes to reach `bytes`.
int64_t BeginOfLast(std::span<const BucketItem> items, int64_t bytes) {
  int64_t begin = 0, size = 0;
  for (int64_t i = std::ssize(items) - 1; i >= 0 && size < bytes; --i) {
    if (!SameKind(items.back(), items[i])) continue;
    size += PaddedNumel(items[i]) * SizeOf(items[i].dtype);
    begin = i;
  }
  return begin;
}

}  // namespace

std::vector<Bucket> PlanBuckets(std::span<const BucketItem> items, const BucketLimits& limits) {
  LS_CHECK(limits.first_bytes >= 1 && limits.bytes >= 0 && limits.multiple >= 1, "buckets of ",
           limits.first_bytes, " and ", limits.bytes, " bytes, in multiples of ", limits.multiple,
           " elements: none may be negative, and only the second may be 0");
  std::vector<Bucket> closed, open;
  const int64_t begin_of_last = BeginOfLast(items, limits.first_bytes);
  for (int64_t i = 0; i < std::ssize(items); ++i) {
    const BucketItem& item = items[i];
    auto bucket =
        std::find_if(open.begin(), open.end(), [&](const Bucket& b) { return SameKind(b, item); });
    const auto close = [&] {
      closed.push_back(std::move(*bucket));
      open.erase(bucket);
      bucket = open.end();
    };
    if (i == begin_of_last && bucket != open.end()) close();
    if (bucket == open.end()) {
      open.push_back({.dtype = item.dtype, .device = item.device, .items = {}, .offsets = {}});
      bucket = open.end() - 1;
    }
    bucket->items.push_back(i);
    bucket->offsets.push_back(bucket->numel);
    bucket->numel += PaddedNumel(item);
    if (i >= begin_of_last && SameKind(items.back(), item)) continue;
    const int64_t others =
        limits.bytes > 0 ? limits.bytes : DefaultBucketBytes(PlannedDevice(item.device));
    if (bucket->bytes() >= (closed.empty() ? limits.first_bytes : others)) close();
  }
  closed.insert(closed.end(), open.begin(), open.end());
  std::stable_sort(closed.begin(), closed.end(), IsReadyBefore);
  for (Bucket& b : closed) b.numel = RoundUp(b.numel, limits.multiple);
  return closed;
}

}  // namespace lockstep::dist
