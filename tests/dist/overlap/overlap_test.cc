// The overlap benchmark on a link of limited rate: it runs, and its figures are consistent. It
// requires no particular times, unlike step_time_test and measure.py, which need an idle machine.
// tests/dist/reducer_test.cc tests, without a clock, that sums overlap with backward.
#include <gtest/gtest.h>

#include "tests/dist/overlap/overlap_run.h"

namespace lockstep::dist {
namespace {

TEST(OverlapTest, TheFiguresOfAStepAgree) {
  const auto r = RunOverlap();
  if (!r) GTEST_SKIP() << "no link of limited rate here; see above for the reason";
  EXPECT_GT(Figure(*r, "buckets"), 3);
  // 200 Mbit/s are 25 MB/s, which no sum can beat; a token bucket lets a little through at once.
  EXPECT_GT(Figure(*r, "sums_alone_ms"), 0.8 * Figure(*r, "bytes") / 25e3);
  EXPECT_GT(Figure(*r, "communication_ms"), 0.8 * Figure(*r, "bytes") / 25e3);
  // Backward hid some of the communication, and waited for the rest.
  EXPECT_GT(Figure(*r, "overlapped_ms"), 0);
  EXPECT_NEAR(Figure(*r, "communication_ms"),
              Figure(*r, "overlapped_ms") + Figure(*r, "exposed_ms"),
              0.1 * Figure(*r, "communication_ms"));
}

}  // namespace
}  // namespace lockstep::dist
