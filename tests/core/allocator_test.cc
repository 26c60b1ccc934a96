#include "core/allocator.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "core/error.h"
#include "tests/sanitized.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

// Sanitizer builds have no cache, so that they see every allocation at its exact size.
constexpr bool kCaches = !test::kSanitized;

const Stream kStream = {kCpu, nullptr};

// Each test starts with an empty cache and leaves no limit behind.
class AllocatorTest : public testing::Test {
 protected:
  AllocatorTest() { Reset(); }
  ~AllocatorTest() override { Reset(); }
  void Reset() {
    allocator_.SetLimit(0);
    allocator_.Trim();
    allocator_.ResetPeak();
  }
  AllocatorStats Since() const {
    AllocatorStats s = allocator_.stats();
    s.live_bytes -= start_.live_bytes;
    s.peak_bytes -= start_.live_bytes;
    s.reserved_bytes -= start_.reserved_bytes;
    s.allocations -= start_.allocations;
    s.system_allocations -= start_.system_allocations;
    return s;
  }

  Allocator& allocator_ = GetAllocator(kCpu);

 private:
  void SetUp() override { start_ = allocator_.stats(); }
  AllocatorStats start_;
};

TEST_F(AllocatorTest, CountsLiveAndPeakAsAskedFor) {
  void* a = allocator_.Allocate(1000, kStream);
  void* b = allocator_.Allocate(5, kStream);
  EXPECT_EQ(Since().live_bytes, 1005);
  allocator_.Free(a, 1000, kStream);
  EXPECT_EQ(Since().live_bytes, 5);
  EXPECT_EQ(Since().peak_bytes, 1005);
  allocator_.ResetPeak();
  EXPECT_EQ(Since().peak_bytes, 5);
  allocator_.Free(b, 5, kStream);
  EXPECT_EQ(Since().live_bytes, 0);
  EXPECT_EQ(Since().allocations, 2);
}

TEST_F(AllocatorTest, MemoryIsAlignedAndWritableInFull) {
  for (const int64_t bytes :
       {1, 63, 64, 65, 511, 513, 4095, 4097, 100000, 3 << 20, (5 << 20) + 1}) {
    void* data = allocator_.Allocate(bytes, kStream);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 64, 0u) << bytes;
    std::memset(data, 7, static_cast<size_t>(bytes));
    allocator_.Free(data, bytes, kStream);
  }
  EXPECT_EQ(allocator_.Allocate(0, kStream), nullptr);
  allocator_.Free(nullptr, 0, kStream);
}

TEST_F(AllocatorTest, ASteadyStepTakesNothingFromTheSystem) {
  const std::vector<int64_t> sizes = {100, 4000, 70000, 3 << 20, 100, 4000};
  const auto step = [&] {
    std::vector<void*> blocks;
    for (const int64_t s : sizes) blocks.push_back(allocator_.Allocate(s, kStream));
    for (size_t i = 0; i < sizes.size(); ++i) allocator_.Free(blocks[i], sizes[i], kStream);
  };
  step();
  const AllocatorStats first = Since();
  EXPECT_EQ(first.system_allocations, 6);
  for (int i = 0; i < 10; ++i) step();
  EXPECT_EQ(Since().system_allocations, kCaches ? 6 : 66);
  EXPECT_EQ(Since().reserved_bytes, first.reserved_bytes);
  EXPECT_EQ(Since().allocations, 66);
}

TEST_F(AllocatorTest, NearbySizesShareBlocksAndWasteLittle) {
  for (int64_t bytes = 1; bytes < 100000; bytes += 777) {
    allocator_.Trim();
    const int64_t before = allocator_.stats().reserved_bytes;
    void* data = allocator_.Allocate(bytes, kStream);
    const int64_t reserved = allocator_.stats().reserved_bytes - before;
    EXPECT_GE(reserved, bytes);
    EXPECT_LE(reserved, bytes + std::max<int64_t>(bytes / 8, 63)) << bytes;
    allocator_.Free(data, bytes, kStream);
  }
}

TEST_F(AllocatorTest, TrimReturnsTheCache) {
  void* kept = allocator_.Allocate(1 << 16, kStream);
  void* freed = allocator_.Allocate(1 << 20, kStream);
  allocator_.Free(freed, 1 << 20, kStream);
  EXPECT_EQ(Since().reserved_bytes, kCaches ? (1 << 16) + (1 << 20) : 1 << 16);
  allocator_.Trim();
  EXPECT_EQ(Since().reserved_bytes, 1 << 16);
  void* again = allocator_.Allocate(1 << 20, kStream);
  std::memset(again, 7, 1 << 20);
  EXPECT_EQ(Since().reserved_bytes, (1 << 16) + (1 << 20));
  EXPECT_EQ(Since().system_allocations, 3);
  allocator_.Free(again, 1 << 20, kStream);
  allocator_.Free(kept, 1 << 16, kStream);
}

TEST_F(AllocatorTest, ALimitIsKeptAndTheErrorSaysEverything) {
  void* data = allocator_.Allocate(600, kStream);
  const int64_t live = allocator_.stats().live_bytes;
  allocator_.SetLimit(live + 400);
  try {
    allocator_.Allocate(401, kStream);
    FAIL() << "401 bytes fitted into 400";
  } catch (const OutOfMemoryError& error) {
    EXPECT_THAT(error.what(), HasSubstr("401 bytes requested"));
    EXPECT_THAT(error.what(), HasSubstr(StrCat(live, " live")));
    EXPECT_THAT(error.what(), HasSubstr(StrCat("the limit is ", live + 400)));
  }
  EXPECT_EQ(allocator_.stats().live_bytes, live) << "a refused allocation does not count";
  allocator_.Free(allocator_.Allocate(400, kStream), 400, kStream);
  EXPECT_THROW(allocator_.Allocate(INT64_MAX, kStream), OutOfMemoryError);
  allocator_.SetLimit(0);
  allocator_.Free(allocator_.Allocate(401, kStream), 401, kStream);
  allocator_.Free(data, 600, kStream);
}

TEST_F(AllocatorTest, WhatNoMachineHasIsOutOfMemoryAndNotACrash) {
  EXPECT_THROW(allocator_.Allocate(INT64_MAX, kStream), OutOfMemoryError);
  if (kCaches) {  // sanitizers end the program instead
    EXPECT_THROW(allocator_.Allocate(int64_t{1} << 55, kStream), OutOfMemoryError);
  }
  EXPECT_THROW(allocator_.Allocate(-1, kStream), ArgumentError);
  EXPECT_EQ(Since().live_bytes, 0);
}

TEST_F(AllocatorTest, ThreadsShareIt) {
  std::vector<std::thread> threads;
  std::atomic<int> damaged{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      std::vector<std::pair<char*, int64_t>> held;
      for (int i = 0; i < 2000; ++i) {
        if (held.size() > 20 || (!held.empty() && random() % 2)) {
          const size_t at = random() % held.size();
          auto [data, bytes] = held[at];
          if (data[0] != t || data[bytes - 1] != t) ++damaged;
          allocator_.Free(data, bytes, kStream);
          held.erase(held.begin() + static_cast<int64_t>(at));
        } else {
          const int64_t bytes = 1 + random() % 5000;
          auto* data = static_cast<char*>(allocator_.Allocate(bytes, kStream));
          data[0] = data[bytes - 1] = static_cast<char>(t);
          held.emplace_back(data, bytes);
        }
      }
      for (auto [data, bytes] : held) allocator_.Free(data, bytes, kStream);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(damaged, 0) << "a block was handed out twice";
  EXPECT_EQ(Since().live_bytes, 0);
}

TEST(GetAllocatorTest, DevicesWithoutOneAreNamed) {
  EXPECT_EQ(&GetAllocator(kCpu), &GetAllocator(kCpu));
  EXPECT_NE(&GetAllocator(kCpu), &GetAllocator({DeviceType::kCpu, 1}));
  try {
    GetAllocator({DeviceType::kMeta, 0});
    FAIL();
  } catch (const ArgumentError& error) {
    EXPECT_THAT(error.what(), HasSubstr("cannot allocate on meta"));
  }
  EXPECT_THROW(GetAllocator({DeviceType::kCpu, -1}), ArgumentError);
}

}  // namespace
}  // namespace lockstep
