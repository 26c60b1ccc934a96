// Reliability promise 23: overlap really happens, and shortens the step. Uses a link of limited
// rate, so that communication takes no computation. It needs an otherwise idle machine, so it only
// runs on request:
//   bazel test -c opt //tests/dist/overlap:step_time_test
#include <gtest/gtest.h>

#include "tests/dist/overlap/overlap_run.h"

namespace lockstep::dist {
namespace {

TEST(StepTimeTest, AStepIsShorterThanItsParts) {
  const auto r = RunOverlap();
  if (!r) GTEST_SKIP() << "no link of limited rate here; see above for the reason";
  ASSERT_GE(Figure(*r, "processor_share"), 0.7) << "the machine is busy: ranks waited for a core";
  EXPECT_GT(Figure(*r, "overlapped_ms"), 0.5 * Figure(*r, "backward_ms"));
  // At least half of what could be hidden is hidden.
  const double could = Figure(*r, "serial_ms") - Figure(*r, "best_ms");
  EXPECT_LT(Figure(*r, "step_ms"), Figure(*r, "serial_ms") - could / 2);
}

}  // namespace
}  // namespace lockstep::dist
