#include "core/allocator.h"

#include <gmock/gmock-matchers.h>

#include <map>
#include <random>

#include "core/cuda/graph_space.h"
#include "core/storage.h"
#include "tests/core/cuda/support.h"

namespace lockstep::cuda {
namespace {

using testing::HasSubstr;

constexpr int64_t kMega = 1 << 20;

// The BUILD file selects the caching allocator, even under sanitizers, and a simulated GPU of 256
// MiB. Each test starts with an empty cache.
class CudaAllocatorTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    for (Stream& stream : streams_) stream = GetStreamBackend(DeviceType::kCuda).CreateStream(kGpu);
    allocator().Trim();
    allocator().ResetPeak();
    start_ = allocator().stats();
    ASSERT_EQ(start_.live_bytes, 0);
    ASSERT_EQ(start_.reserved_bytes, 0);
  }
  void TearDown() override {
    if (IsSkipped()) return;
    allocator().SetLimit(0);
    EXPECT_EQ(allocator().stats().live_bytes, 0);
    allocator().Trim();
    EXPECT_EQ(allocator().stats().reserved_bytes, 0) << "a segment is not whole any more";
  }

  static Allocator& allocator() { return GetAllocator(kGpu); }
  int64_t FromDriver() const {
    return allocator().stats().system_allocations - start_.system_allocations;
  }
  std::string OutOfMemory(int64_t bytes) {
    try {
      allocator().Free(allocator().Allocate(bytes, streams_[0]), bytes, streams_[0]);
    } catch (const OutOfMemoryError& error) {
      return error.what();
    }
    ADD_FAILURE() << bytes << " bytes were there";
    return "";
  }

  Stream streams_[2];
  AllocatorStats start_;
};

TEST_F(CudaAllocatorTest, ASecondStepGetsTheMemoryOfTheFirst) {
  const std::vector<int64_t> sizes = {4, 1000, 3 * kMega, 17, kMega, 24 * kMega, 600000, 3 * kMega};
  std::vector<void*> first;
  for (int step = 0; step < 3; ++step) {
    std::vector<void*> data;
    for (int64_t size : sizes) data.push_back(allocator().Allocate(size, streams_[0]));
    for (size_t i = 0; i < sizes.size(); i += 2) {
      allocator().Free(data[i], sizes[i], streams_[0]);
    }
    for (size_t i = 1; i < sizes.size(); i += 2) {
      allocator().Free(data[i], sizes[i], streams_[0]);
    }
    if (step == 0) first = data;
    EXPECT_EQ(data, first) << "in step " << step;
    EXPECT_EQ(FromDriver(), 3) << "a segment for those up to 1 MB, one for 3 + 3 MB, one for 24";
  }
}

TEST_F(CudaAllocatorTest, CountsWhatWasAskedFor) {
  void* a = allocator().Allocate(1000, streams_[0]);
  void* b = allocator().Allocate(5, streams_[0]);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(b) % 512, 0u);
  EXPECT_EQ(allocator().stats().live_bytes, 1005);
  allocator().Free(a, 1000, streams_[0]);
  EXPECT_EQ(allocator().stats().live_bytes, 5);
  EXPECT_EQ(allocator().stats().peak_bytes, 1005);
  EXPECT_EQ(allocator().Allocate(0, streams_[0]), nullptr);
  EXPECT_EQ(allocator().stats().reserved_bytes, 2 * kMega);
  allocator().Free(b, 5, streams_[0]);
  EXPECT_THROW(allocator().Allocate(-1, streams_[0]), ArgumentError);
}

TEST_F(CudaAllocatorTest, FreeNeighboursAreJoined) {
  for (const std::vector<int>& order :
       {std::vector<int>{0, 1, 2, 3}, {3, 2, 1, 0}, {1, 3, 0, 2}, {0, 2, 1, 3}}) {
    void* parts[4];
    for (void*& part : parts) part = allocator().Allocate(5 * kMega, streams_[0]);
    for (int i : order) allocator().Free(parts[i], 5 * kMega, streams_[0]);
    void* whole = allocator().Allocate(20 * kMega, streams_[0]);
    EXPECT_EQ(whole, parts[0]);
    allocator().Free(whole, 20 * kMega, streams_[0]);
  }
  EXPECT_EQ(FromDriver(), 1);
}

TEST_F(CudaAllocatorTest, StreamsDoNotGetEachOthersMemory) {
  void* a = allocator().Allocate(3 * kMega, streams_[0]);
  allocator().Free(a, 3 * kMega, streams_[0]);
  void* b = allocator().Allocate(3 * kMega, streams_[1]);
  EXPECT_NE(a, b) << "work on the first stream may still use it";
  allocator().Free(b, 3 * kMega, streams_[1]);
  EXPECT_EQ(allocator().Allocate(3 * kMega, streams_[0]), a);
  allocator().Free(a, 3 * kMega, streams_[0]);
}

TEST_F(CudaAllocatorTest, ALimitSaysWhoHoldsTheMost) {
  allocator().SetLimit(10 * kMega);
  void* parts[3];
  for (void*& part : parts) part = allocator().Allocate(2000000, streams_[0]);
  void* small = allocator().Allocate(500000, streams_[0]);
  const std::string text = OutOfMemory(6000000);
  EXPECT_THAT(text, HasSubstr(StrCat("out of memory on ", kGpu,
                                     ": 6.0 MB requested, 6.5 MB live in 4 tensors")));
  EXPECT_THAT(text, HasSubstr("the limit is 10.5 MB"));
  EXPECT_THAT(text, HasSubstr("the largest holders are 3 x 2.0 MB, 1 x 0.5 MB"));
  for (void* part : parts) allocator().Free(part, 2000000, streams_[0]);
  allocator().Free(small, 500000, streams_[0]);
}

TEST_F(CudaAllocatorTest, MemoryOfOtherStreamsIsTheLastResort) {
  if (!Simulated()) GTEST_SKIP() << "needs a small GPU";
  void* a = allocator().Allocate(200 * kMega, streams_[0]);
  allocator().Free(a, 200 * kMega, streams_[0]);
  void* b = allocator().Allocate(200 * kMega, streams_[1]);
  EXPECT_EQ(allocator().stats().reserved_bytes, 200 * kMega);
  EXPECT_THAT(OutOfMemory(100 * kMega), HasSubstr("the driver has"));
  EXPECT_THAT(OutOfMemory(int64_t{1} << 60), HasSubstr("more than any device has"));
  allocator().Free(b, 200 * kMega, streams_[1]);
}

// That would wait for the device and invalidate the capture.
TEST_F(CudaAllocatorTest, NothingGoesBackToTheDriverDuringACapture) {
  if (!Simulated()) GTEST_SKIP() << "needs a small GPU";
  allocator().Free(allocator().Allocate(200 * kMega, streams_[0]), 200 * kMega, streams_[0]);
  std::string error;
  const Graph graph = Graph::Capture(streams_[1], [&] {
    allocator().Trim();
    try {
      allocator().Allocate(100 * kMega, streams_[1]);
    } catch (const OutOfMemoryError& e) {
      error = e.what();
    }
    { const GraphSpace another(kGpu); }
  });
  EXPECT_TRUE(graph.defined());
  EXPECT_THAT(
      error,
      HasSubstr(
          "the free memory of other streams cannot be reclaimed while a CUDA graph is captured"));
  EXPECT_EQ(allocator().stats().reserved_bytes, 200 * kMega);
  void* now = allocator().Allocate(100 * kMega, streams_[1]);
  EXPECT_EQ(allocator().stats().reserved_bytes, 100 * kMega);
  allocator().Free(now, 100 * kMega, streams_[1]);
}

// What is free of it later was not live as well when the most was.
TEST_F(CudaAllocatorTest, ThePeakHasTheMemoryOfGraphsOnce) {
  GraphSpace space(kGpu);
  Stream graphs;
  const auto take = [&](int64_t bytes) {
    void* const data = allocator().Allocate(bytes, graphs);
    return [=, this] { allocator().Free(data, bytes, graphs); };
  };
  const int64_t others = 5 * kMega, segment = 20 * kMega;
  void* const other = allocator().Allocate(others, streams_[0]);
  const Graph graph = space.Capture([&] {
    graphs = CurrentStream(kGpu);
    const auto first = take(7 * kMega), second = take(7 * kMega + 1);
    first();
    second();
  });
  EXPECT_EQ(allocator().stats().peak_bytes, others + segment);
  EXPECT_EQ(allocator().stats().live_bytes, others + segment);
  allocator().Free(other, others, streams_[0]);
  EXPECT_EQ(allocator().stats().live_bytes, segment);
  EXPECT_EQ(allocator().stats().peak_bytes, others + segment);
  allocator().ResetPeak();
  EXPECT_EQ(allocator().stats().peak_bytes, segment);
}

TEST_F(CudaAllocatorTest, LiveMemoryNeverOverlaps) {
  std::mt19937_64 random(3);
  std::map<char*, std::pair<int64_t, Stream>> live;
  for (int i = 0; i < 4000; ++i) {
    if (live.size() < 60 && random() % 2 == 0) {
      const int64_t bytes = 1 + static_cast<int64_t>(random() % (random() % 4 ? 4096 : 3 * kMega));
      const Stream stream = streams_[random() % 2];
      auto* data = static_cast<char*>(allocator().Allocate(bytes, stream));
      const auto [it, inserted] = live.emplace(data, std::pair(bytes, stream));
      ASSERT_TRUE(inserted);
      if (it != live.begin()) {
        ASSERT_LE(std::prev(it)->first + std::prev(it)->second.first, data);
      }
      if (std::next(it) != live.end()) {
        ASSERT_LE(data + bytes, std::next(it)->first);
      }
    } else if (!live.empty()) {
      const auto it = std::next(live.begin(), static_cast<int64_t>(random() % live.size()));
      allocator().Free(it->first, it->second.first, it->second.second);
      live.erase(it);
    }
    if (i % 1000 == 999) allocator().Trim();
  }
  for (const auto& [data, use] : live) allocator().Free(data, use.first, use.second);
}

TEST_F(CudaAllocatorTest, StorageWaitsForOtherStreamsBeforeItsMemoryIsReused) {
  Storage storage;
  {
    const StreamGuard guard(streams_[0]);
    storage = Storage::Allocate(kMega, kGpu);
  }
  Blocked blocked(streams_[1]);
  storage.RecordUse(streams_[1]);
  storage = Storage();
  // What comes next on the first stream may get that memory, so it must wait for the second.
  Event reused(kGpu);
  reused.Record(streams_[0]);
  EXPECT_FALSE(reused.Query());
  blocked.Open();
  reused.Synchronize();
}

}  // namespace
}  // namespace lockstep::cuda
