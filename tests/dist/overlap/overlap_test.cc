// The benchmark of overlap, on a link of limited rate: that it runs, and that its figures are of
// one piece. No time is asked for: step_time_test and measure.py do so, on a quiet machine. That
// sums go on during backward is tested without a clock in tests/dist/reducer_test.cc.
#include <gtest/gtest.h>

#include "tests/dist/overlap/overlap_run.h"

namespace lockstep::dist {
namespace {

TEST(OverlapTest, TheFiguresOfAStepAgree) {
  const auto r = RunOverlap();
  if (!r) GTEST_SKIP() << "no link of a limited rate here; why is above";
  EXPECT_GT(Figure(*r, "buckets"), 3);
  // 200 Mbit/s are 25 MB/s, which no sum can beat; a token bucket lets a little through at once.
  EXPECT_GT(Figure(*r, "sums_alone_ms"), 0.8 * Figure(*r, "bytes") / 25e3);
  EXPECT_GT(Figure(*r, "communication_ms"), 0.8 * Figure(*r, "bytes") / 25e3);
  // Some of what communication took was behind backward, the rest was waited for.
  EXPECT_GT(Figure(*r, "overlapped_ms"), 0);
  EXPECT_NEAR(Figure(*r, "communication_ms"),
              Figure(*r, "overlapped_ms") + Figure(*r, "exposed_ms"),
              0.1 * Figure(*r, "communication_ms"));
}

}  // namespace
}  // namespace lockstep::dist
