#include "dist/data_parallel/lane.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <stdexcept>
#include <thread>
#include <vector>

namespace lockstep::dist {
namespace {

TEST(Lane, RunsJobsInOrderOnAnotherThread) {
  const auto lane = MakeLane(kCpu);
  std::vector<int> order;
  std::thread::id thread;
  for (int i = 0; i < 100; ++i) {
    lane->Submit([&, i] {
      order.push_back(i);
      thread = std::this_thread::get_id();
    });
  }
  lane->Wait();
  ASSERT_EQ(order.size(), 100u);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
  EXPECT_NE(thread, std::this_thread::get_id());
}

TEST(Lane, RunsConcurrentlyWithTheCaller) {
  const auto lane = MakeLane(kCpu);
  std::promise<void> go;
  std::atomic<bool> done = false;
  lane->Submit([&] {
    go.get_future().wait();
    done = true;
  });
  EXPECT_FALSE(done);
  go.set_value();
  lane->Wait();
  EXPECT_TRUE(done);
}

TEST(Lane, AnErrorDropsLaterJobsAndTheLaneRemainsUsable) {
  const auto lane = MakeLane(kCpu);
  std::promise<void> all_submitted;
  std::atomic<int> ran = 0;
  lane->Submit([&] {
    all_submitted.get_future().wait();
    throw std::runtime_error("first");
  });
  lane->Submit([&] { ++ran; });
  lane->Submit([] { throw std::runtime_error("second"); });
  all_submitted.set_value();
  try {
    lane->Wait();
    FAIL() << "no error";
  } catch (const std::runtime_error& e) {
    EXPECT_STREQ(e.what(), "first");
  }
  EXPECT_EQ(ran, 0);
  lane->Wait();  // reports the error only once
  lane->Submit([&] { ++ran; });
  lane->Wait();
  EXPECT_EQ(ran, 1);
}

TEST(Lane, TheDestructorDropsWhatHasNotBegun) {
  std::atomic<int> ran = 0;
  std::promise<void> begun, go;
  auto lane = MakeLane(kCpu);
  lane->Submit([&] {
    begun.set_value();
    go.get_future().wait();
    ++ran;
  });
  lane->Submit([&] { ++ran; });
  begun.get_future().wait();
  std::thread destroyer([&] { lane.reset(); });
  go.set_value();
  destroyer.join();
  EXPECT_GE(ran, 1);
}

}  // namespace
}  // namespace lockstep::dist
