#include "core/thread_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "core/error.h"

namespace lockstep {
namespace {

class ThreadPoolTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { SetNumThreads(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolTest, testing::Values(1, 2, 3, 8));

TEST_P(ThreadPoolTest, CoversTheRangeExactlyInChunksOfTheGrain) {
  EXPECT_EQ(NumThreads(), GetParam());
  for (const int64_t n : {0, 1, 2, 7, 64, 1000}) {
    for (const int64_t grain : {-1, 0, 1, 3, 64, 5000}) {
      std::vector<std::atomic<int>> seen(static_cast<size_t>(n));
      std::mutex mutex;
      std::set<std::pair<int64_t, int64_t>> chunks;
      ParallelFor(n, grain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) ++seen[i];
        std::lock_guard lock(mutex);
        chunks.insert({begin, end});
      });
      for (int64_t i = 0; i < n; ++i) ASSERT_EQ(seen[i], 1) << n << ", " << grain << ", " << i;
      // The chunks do not depend on the number of threads.
      const int64_t step = std::max<int64_t>(grain, 1);
      std::set<std::pair<int64_t, int64_t>> want;
      for (int64_t b = 0; b < n; b += step) want.insert({b, std::min(n, b + step)});
      ASSERT_EQ(chunks, want);
    }
  }
  ParallelFor(-5, 1, [](int64_t, int64_t) { FAIL(); });
}

TEST_P(ThreadPoolTest, ManySmallJobsInARow) {
  int64_t total = 0;
  for (int round = 0; round < 2000; ++round) {
    std::atomic<int64_t> sum{0};
    ParallelFor(16, 1, [&](int64_t begin, int64_t) { sum += begin; });
    total += sum;
  }
  EXPECT_EQ(total, 2000 * 120);
}

TEST_P(ThreadPoolTest, WorkersWakeUpAfterSleep) {
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));  // longer than workers spin
    std::atomic<int> count{0};
    ParallelFor(50, 1, [&](int64_t, int64_t) { ++count; });
    EXPECT_EQ(count, 50);
  }
}

TEST_P(ThreadPoolTest, AnExceptionReachesTheCallerAndThePoolGoesOn) {
  for (const int64_t bad : {0, 17, 99}) {
    try {
      ParallelFor(100, 1, [&](int64_t begin, int64_t) {
        if (begin == bad) throw Error(StrCat("chunk ", begin));
      });
      FAIL() << "no exception";
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()), StrCat("chunk ", bad));
    }
    std::atomic<int> count{0};
    ParallelFor(100, 1, [&](int64_t, int64_t) { ++count; });
    EXPECT_EQ(count, 100);
  }
  EXPECT_THROW(ParallelFor(100, 1, [](int64_t, int64_t) { throw Error("all of them"); }), Error);
}

TEST_P(ThreadPoolTest, NestedLoopsRunWhereTheyAre) {
  std::atomic<int> count{0};
  ParallelFor(8, 1, [&](int64_t, int64_t) {
    const auto outer = std::this_thread::get_id();
    ParallelFor(10, 1, [&](int64_t, int64_t) {
      EXPECT_EQ(std::this_thread::get_id(), outer);
      ++count;
    });
  });
  EXPECT_EQ(count, 80);
  // An exception in a nested loop reaches the caller.
  EXPECT_THROW(ParallelFor(8, 1,
                           [](int64_t, int64_t) {
                             ParallelFor(4, 1, [](int64_t, int64_t) { throw Error("inner"); });
                           }),
               Error);
}

TEST_P(ThreadPoolTest, CallersAtTheSameTime) {
  std::vector<std::thread> callers;
  std::vector<int64_t> sums(6);
  for (int t = 0; t < 6; ++t) {
    callers.emplace_back([t, &sums] {
      for (int round = 0; round < 100; ++round) {
        std::atomic<int64_t> sum{0};
        ParallelFor(32, 1, [&](int64_t begin, int64_t) { sum += begin; });
        sums[t] += sum;
      }
    });
  }
  for (auto& c : callers) c.join();
  for (const int64_t s : sums) EXPECT_EQ(s, 100 * 496);
}

TEST_P(ThreadPoolTest, PlainMemoryWrittenInTheLoopIsVisibleAfterIt) {
  std::vector<int> data(10000);
  for (int round = 1; round <= 20; ++round) {
    ParallelFor(10000, 100, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) data[i] += round;
    });
    for (const int x : data) ASSERT_EQ(x, round * (round + 1) / 2);
  }
}

TEST(SetNumThreadsTest, ChangesTheNumberAndRefusesNonsense) {
  for (const int n : {4, 1, 2}) {
    SetNumThreads(n);
    EXPECT_EQ(NumThreads(), n);
    std::atomic<int> count{0};
    ParallelFor(20, 1, [&](int64_t, int64_t) { ++count; });
    EXPECT_EQ(count, 20);
  }
  EXPECT_THROW(SetNumThreads(0), ArgumentError);
  EXPECT_THROW(SetNumThreads(-3), ArgumentError);
  EXPECT_EQ(NumThreads(), 2);
}

}  // namespace
}  // namespace lockstep
