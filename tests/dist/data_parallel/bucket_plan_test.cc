#include "dist/data_parallel/bucket_plan.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "core/philox.h"
#include "dist/shard/flat_exchange.h"
#include "kernels/global_norm/global_norm.h"
#include "tests/message_of.h"

namespace lockstep::dist {
namespace {

using testing::ElementsAre;

BucketItem F32(int64_t numel) { return {.numel = numel, .dtype = DType::kF32, .device = kCpu}; }

std::vector<std::vector<int64_t>> Items(const std::vector<Bucket>& buckets) {
  std::vector<std::vector<int64_t>> items;
  for (const Bucket& b : buckets) items.push_back(b.items);
  return items;
}

TEST(BucketPlan, ABucketClosesOnceItReachesTheLimit) {
  const std::vector<BucketItem> items = {F32(64),   F32(64), F32(64), F32(128),
                                         F32(1000), F32(64), F32(128)};
  EXPECT_THAT(Items(PlanBuckets(items, {.first_bytes = 300, .bytes = 1000})),
              ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3, 4), ElementsAre(5), ElementsAre(6)));
  EXPECT_EQ(PlanBuckets(items, {.first_bytes = 1, .bytes = 1}).size(), items.size());
  EXPECT_EQ(PlanBuckets(items, {.first_bytes = 1 << 20, .bytes = 1}).size(), 1u);
  EXPECT_THAT(Items(PlanBuckets(items, {.first_bytes = 1, .bytes = 1 << 20})),
              ElementsAre(ElementsAre(0), ElementsAre(1, 2, 3, 4, 5), ElementsAre(6)));
  EXPECT_TRUE(PlanBuckets({}, {}).empty());
}

// The last one is as small as the first: no computation hides it.
TEST(BucketPlan, TheLastBucketBeginsAsLateAsReachesTheLimitOfTheFirst) {
  const std::vector<BucketItem> items(9, F32(64));
  EXPECT_THAT(Items(PlanBuckets(items, {.first_bytes = 512, .bytes = 1 << 20})),
              ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3, 4, 5, 6), ElementsAre(7, 8)));
  // A larger item gets its own bucket; offsets start again at 0.
  const auto buckets =
      PlanBuckets({{F32(64), F32(1), F32(100), F32(200)}}, {.first_bytes = 256, .bytes = 1 << 20});
  EXPECT_THAT(Items(buckets), ElementsAre(ElementsAre(0), ElementsAre(1, 2), ElementsAre(3)));
  EXPECT_THAT(buckets[1].offsets, ElementsAre(0, 64));
  EXPECT_EQ(buckets[1].numel, 64 + 128);
  EXPECT_THAT(buckets[2].offsets, ElementsAre(0));
  EXPECT_EQ(buckets[2].numel, 256);
  // Weights and their bias stay together, and apart from the previous layer, since they become
  // ready at the same time. Without this rule, the last weights would reach the second limit.
  const std::vector<BucketItem> layers = {F32(256), F32(8), F32(256), F32(8), F32(256), F32(8)};
  for (const int64_t bytes : {2048, 1 << 20}) {
    EXPECT_THAT(Items(PlanBuckets(layers, {.first_bytes = 1024, .bytes = bytes})),
                ElementsAre(ElementsAre(0), ElementsAre(1, 2, 3), ElementsAre(4, 5)));
  }
  // A small item changes nothing.
  EXPECT_THAT(
      Items(PlanBuckets(std::vector<BucketItem>(4, F32(32)), {.first_bytes = 512, .bytes = 1024})),
      ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
}

// dtypes do not mix; buckets are in the order in which their last items become ready.
TEST(BucketPlan, EachDTypeHasItsOwnBuckets) {
  const BucketItem bf16{.numel = 64, .dtype = DType::kBF16, .device = kCpu};
  const std::vector<BucketItem> items = {F32(64), bf16, F32(64), bf16, F32(64), bf16};
  const auto buckets = PlanBuckets(items, {.first_bytes = 768, .bytes = 256});
  EXPECT_THAT(Items(buckets), ElementsAre(ElementsAre(0, 2, 4), ElementsAre(1, 3, 5)));
  EXPECT_EQ(buckets[0].dtype, DType::kF32);
  EXPECT_EQ(buckets[1].dtype, DType::kBF16);
  EXPECT_EQ(buckets[1].bytes(), 3 * kBucketAlignment);
}

// Whatever the sizes and limits: each item occurs once, in order, aligned, without overlap.
TEST(BucketPlan, RandomPlansAreSound) {
  const Philox random(8);
  for (uint64_t trial = 0; trial < 300; ++trial) {
    uint64_t next = 0;
    const auto draw = [&](int64_t n) {
      return static_cast<int64_t>(random.At(trial, next++) % static_cast<uint64_t>(n));
    };
    std::vector<BucketItem> items;
    for (int64_t n = draw(40); n > 0; --n) {
      items.push_back({.numel = draw(3) == 0 ? draw(3) : draw(5000),
                       .dtype = draw(4) == 0 ? DType::kBF16 : DType::kF32,
                       .device = kCpu});
    }
    const BucketLimits limits{.first_bytes = 1 + draw(5000),
                              .bytes = 1 + draw(40000),
                              .multiple = int64_t{64} * (1 + draw(4))};
    const auto buckets = PlanBuckets(items, limits);
    std::vector<int> seen(items.size());
    int64_t last_ready = -1;
    for (const Bucket& b : buckets) {
      ASSERT_EQ(b.items.size(), b.offsets.size());
      ASSERT_EQ(b.numel % limits.multiple, 0);
      int64_t end = 0;
      for (size_t i = 0; i < b.items.size(); ++i) {
        const BucketItem& item = items[b.items[i]];
        ASSERT_EQ(item.dtype, b.dtype);
        ASSERT_GE(b.offsets[i], end);
        ASSERT_EQ(b.offsets[i] * SizeOf(b.dtype) % kBucketAlignment, 0);
        end = b.offsets[i] + item.numel;
        ++seen[b.items[i]];
        if (i > 0) {
          ASSERT_LT(b.items[i - 1], b.items[i]);
        }
      }
      ASSERT_LE(end, b.numel);
      ASSERT_LT(last_ready, b.items.back());
      last_ready = b.items.back();
    }
    for (const int n : seen) ASSERT_EQ(n, 1);
    if (buckets.empty()) continue;
    const Bucket& last = buckets.back();
    const int64_t end = last.offsets.back() + items[last.items.back()].numel;
    ASSERT_TRUE(last.items.size() == 1 ||
                (end - last.offsets[1]) * SizeOf(last.dtype) < limits.first_bytes);
  }
}

TEST(BucketPlan, BucketsAreLargerOnGpusByDefault) {
  for (const Device device : {kCpu, Device{DeviceType::kCuda, 1}}) {
    std::vector<BucketItem> items(40, F32(1 << 18));  // a MiB each
    for (BucketItem& item : items) item.device = device;
    const auto buckets = PlanBuckets(items, {});
    EXPECT_EQ(buckets.at(0).bytes(), 1 << 20);
    EXPECT_EQ(buckets.at(1).bytes(), (device.is_cuda() ? 25 : 2) << 20);
  }
}

TEST(BucketPlan, RefusesInvalidLimits) {
  for (const BucketLimits& limits :
       {BucketLimits{.first_bytes = 0}, BucketLimits{.bytes = -1}, BucketLimits{.multiple = 0}}) {
    EXPECT_THAT(test::MessageOf([&] { PlanBuckets({}, limits); }),
                testing::HasSubstr("none may be negative, and only the second may be 0"));
  }
}

// Parts are disjoint, in order, and cut where chunks of the norm end; shards are hardly larger than
// they must be.
TEST(FlatLayout, CutsBetweenChunksOfTheNorm) {
  const Philox random(5);
  for (int round = 0; round < 300; ++round) {
    int drawn = 0;
    const auto draw = [&](int64_t below) {
      return static_cast<int64_t>(
          random.At(static_cast<uint64_t>(round), static_cast<uint64_t>(drawn++)) %
          static_cast<uint64_t>(below));
    };
    const int64_t ranks = 1 + draw(9), multiple = 1 + draw(4);
    std::vector<int64_t> numels;
    int64_t total = 0;
    for (int64_t n = 1 + draw(15); n > 0; --n) {
      numels.push_back(draw(3) ? draw(1 + 12 * kGradNormChunk) : draw(200));
      total += numels.back();
    }
    const FlatLayout layout = PlanFlat(numels, ranks, multiple);
    ASSERT_EQ(layout.offsets.size(), numels.size());
    EXPECT_EQ(layout.shard % multiple, 0);
    for (size_t p = 0; p < numels.size(); ++p) {
      EXPECT_EQ(layout.offsets[p] % 128, 0) << "aligned";
      EXPECT_LE(layout.offsets[p] + numels[p],
                p + 1 < numels.size() ? layout.offsets[p + 1] : layout.numel());
      int64_t at = 0;
      for (int64_t r = 0; r < ranks; ++r) {
        const ShardRange range = layout.RangeOf(p, numels[p], r);
        if (range.begin == range.end) continue;
        EXPECT_EQ(range.begin, at);
        EXPECT_EQ(range.begin % kGradNormChunk, 0);
        EXPECT_GE(layout.offsets[p] + range.begin, r * layout.shard);
        EXPECT_LE(layout.offsets[p] + range.end, (r + 1) * layout.shard);
        at = range.end;
      }
      EXPECT_EQ(at, numels[p]);
    }
    // A chunk is wasted at each cut, and alignment.
    EXPECT_LE(layout.shard, total / ranks + 3 * kGradNormChunk * multiple + 128 * 16);
  }
}

}  // namespace
}  // namespace lockstep::dist
