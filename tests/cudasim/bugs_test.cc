// Every planted bug is caught, with the name of the kernel and the line; the same kernel without
// the bug is not reported.
#include "tests/cudasim/bugs.h"

#include <gmock/gmock-more-matchers.h>

#include <cmath>
#include <string>

#include "cudasim/bug.h"
#include "cudasim/settings.h"
#include "tests/cudasim/device_buffer.h"

namespace lockstep {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr int kN = 512;

struct Outcome {
  std::vector<std::string> reports;
  std::vector<float> y;
  bool failed;
};

Outcome RunBug(PlantedBug bug, bool planted, int n = kN) {
  std::vector<float> x_values(n);
  for (int i = 0; i < n; ++i) x_values[i] = static_cast<float>(i % 128);
  DeviceBuffer<float> x(x_values), y(n);
  const cudaError_t launched = RunPlanted(bug, planted, x.data(), y.data(), n);
  const cudaError_t ran = cudaDeviceSynchronize();
  Outcome outcome;
  outcome.reports = cudasim::TakeReports();
  outcome.failed = launched != cudaSuccess || ran != cudaSuccess;
  if (!outcome.failed) {
    outcome.y = y.Read();
    outcome.y.resize(64);
  }
  return outcome;
}

// A bug, and what is reported of it.
struct Reported {
  PlantedBug bug;
  const char* kind;
  const char* kernel;
  const char* text;  // a regular expression
};

const Reported kReported[] = {
    {PlantedBug::kBarrierInHalfTheThreads, "barrier divergence", "BarrierInHalfTheThreadsKernel",
     "lane 1 of the warp is not at this barrier +at .*bugs.cu:[0-9]+"},
    {PlantedBug::kExitBeforeBarrier, "barrier divergence", "ExitBeforeBarrierKernel",
     "lane 29 of the warp has exited +at .*bugs.cu:[0-9]+"},
    {PlantedBug::kLoopBarrierUneven, "barrier divergence", "LoopBarrierUnevenKernel",
     "lane 0 of the warp is not at this barrier +at .*bugs.cu:[0-9]+"},
    {PlantedBug::kShuffleInBranch, "barrier divergence", "ShuffleInBranchKernel",
     "lane 0 of the warp is not at this barrier +at .*bugs.cu:[0-9]+"},
    {PlantedBug::kShuffleTwoPlaces, "warp collective with missing lanes", "ShuffleTwoPlacesKernel",
     "lane 0 is in the mask, but does not take part +at .*inlined at .*bugs.cu:[0-9]+"},
    {PlantedBug::kShuffleFromAbsentLane, "warp collective with missing lanes",
     "ShuffleFromAbsentLaneKernel", "reads from lane 16, which is not in the mask.*bugs.cu:[0-9]+"},
    {PlantedBug::kShuffleNotInMask, "warp collective with missing lanes", "ShuffleNotInMaskKernel",
     "thread \\(16,0,0\\) of .*not in its own mask.*bugs.cu:[0-9]+"},
    {PlantedBug::kMisalignedVector, "misaligned access", "MisalignedVectorKernel",
     "access of 16 bytes .*no multiple of 16 +at .*bugs.cu:[0-9]+"},
    {PlantedBug::kMisalignedAsync, "misaligned access", "MisalignedAsyncKernel",
     "access of 16 bytes .*no multiple of 16 +at .*cp_async.cuh:[0-9]+, inlined at .*bugs.cu"},
    {PlantedBug::kAssert, "assertion failed", "AssertKernel",
     "thread \\(9,0,0\\) of .*threadIdx.x != 9"},
    {PlantedBug::kTrap, "trap", "TrapKernel", "thread \\(9,0,0\\) of .*bugs.cu:[0-9]+"},
    {PlantedBug::kSharedPastEndRead, "access out of bounds", "SharedPastEndReadKernel",
     "thread \\(63,0,0\\) of .*0x100 of shared memory, which has 256 bytes +at .*bugs.cu:[0-9]+"},
    {PlantedBug::kDynamicSharedPastEnd, "access out of bounds", "DynamicSharedPastEndKernel",
     "thread \\(60,0,0\\) of .*0x10c of shared memory, which has 256 bytes +at .*bugs.cu:[0-9]+"},
    {PlantedBug::kGlobalPastEnd, "access out of bounds", "GlobalPastEndKernel",
     "thread \\(17,0,0\\) of .*0 bytes after .*at .*bugs.cu:[0-9]+"},
    {PlantedBug::kGlobalPastEndWrite, "access out of bounds", "GlobalPastEndWriteKernel",
     "thread \\(17,0,0\\) of .*0 bytes after .*at .*bugs.cu:[0-9]+"},
    {PlantedBug::kGlobalBeforeBegin, "access out of bounds", "GlobalBeforeBeginKernel",
     "thread \\(3,0,0\\) of .*4 bytes before .*at .*bugs.cu:[0-9]+"},
    // With ExecutorSettings::find_races.
    {PlantedBug::kMissingBarrier, "data race", "MissingBarrierKernel",
     "nothing orders the two; +the other at .*bugs.cu:[0-9]+.*at .*bugs.cu:[0-9]+"},
    {PlantedBug::kMissingBarrierAfterRead, "data race", "MissingBarrierAfterReadKernel",
     "nothing orders the two; +the other at .*bugs.cu:[0-9]+.*at .*bugs.cu:[0-9]+"},
    {PlantedBug::kMissingSyncWarp, "data race", "MissingSyncWarpKernel",
     "thread \\(0,0,0\\) of .*byte 4, which thread \\(1,0,0\\) wrote.*bugs.cu:[0-9]+.*bugs.cu"},
    {PlantedBug::kMissingAsyncWait, "missing wait", "MissingAsyncWaitKernel",
     "has begun a copy, and not waited for it, at .*cp_async.cuh.*bugs.cu.* at .*bugs.cu:[0-9]+"},
    {PlantedBug::kMissingAsyncBarrier, "data race", "MissingAsyncBarrierKernel",
     "cp_async.cuh:[0-9]+, inlined at .*bugs.cu"},
    {PlantedBug::kUninitialisedShared, "uninitialised read", "UninitialisedSharedKernel",
     "thread \\(0,0,0\\) of .*byte 0, which was not written before +at .*bugs.cu:[0-9]+"},
    {PlantedBug::kGlobalRaceBetweenBlocks, "data race", "GlobalRaceBetweenBlocksKernel",
     "which thread \\(5,0,0\\) of block \\(0,0,0\\) wrote.*bugs.cu:[0-9]+"},
    {PlantedBug::kGlobalRaceInBlock, "data race", "GlobalRaceInBlockKernel",
     "global memory at 0x.*bugs.cu:[0-9]+.*bugs.cu:[0-9]+"},
    {PlantedBug::kLastBlockWithoutFence, "data race", "LastBlockWithoutFenceKernel",
     "which thread \\(0,0,0\\) of block \\(0,0,0\\) wrote.*bugs.cu:[0-9]+.*bugs.cu:[0-9]+"},
};

class BugsTest : public ::testing::Test {
 protected:
  BugsTest() { settings_->abort_on_bug = false; }
  ~BugsTest() override { EXPECT_EQ(cudaDeviceReset(), cudaSuccess); }
  ScopedSettings settings_;
};

TEST_F(BugsTest, AreReported) {
  settings_->find_races = true;
  for (const Reported& expected : kReported) {
    SCOPED_TRACE(expected.kernel);
    const Outcome outcome = RunBug(expected.bug, true);
    EXPECT_TRUE(outcome.failed);
    EXPECT_EQ(cudaDeviceReset(), cudaSuccess);
    ASSERT_FALSE(outcome.reports.empty());
    std::string report = outcome.reports.front();
    for (char& c : report) c = c == '\n' ? ' ' : c;  // "." of POSIX expressions stops at no line
    EXPECT_THAT(report, HasSubstr(std::string("cudasim: ") + expected.kind));
    EXPECT_THAT(report, ContainsRegex(std::string("kernel [A-Za-z0-9_:( )]*") + expected.kernel +
                                      ", block \\([0-9],0,0\\) of "));
    EXPECT_THAT(report, ContainsRegex(expected.text));
  }
}

// A buffer of 509 floats ends 12 bytes before a guard page.
constexpr int kOdd = 509;

TEST_F(BugsTest, AWriteJustBehindABufferIsReportedWithItsKernel) {
  const Outcome outcome = RunBug(PlantedBug::kGlobalPastEndWrite, true, kOdd);
  EXPECT_TRUE(outcome.failed);
  ASSERT_FALSE(outcome.reports.empty());
  EXPECT_THAT(outcome.reports.front(), HasSubstr("access out of bounds"));
  EXPECT_THAT(outcome.reports.front(),
              ContainsRegex("0 bytes after device memory 0x[0-9a-f]+ of 2036 bytes"));
}

TEST_F(BugsTest, AWriteJustBeforeABufferIsReportedWithItsKernel) {
  const Outcome outcome = RunBug(PlantedBug::kGlobalBeforeBegin, true, kOdd);
  EXPECT_TRUE(outcome.failed);
  ASSERT_FALSE(outcome.reports.empty());
  EXPECT_THAT(outcome.reports.front(),
              ContainsRegex("4 bytes before device memory 0x[0-9a-f]+ of 2036 bytes"));
}

TEST_F(BugsTest, AReadJustBehindABufferIsReported) {
  const Outcome outcome = RunBug(PlantedBug::kGlobalPastEnd, true, kOdd);
  ASSERT_FALSE(outcome.reports.empty());
  EXPECT_THAT(outcome.reports.front(),
              ContainsRegex("0 bytes after device memory 0x[0-9a-f]+ of 2036 bytes"));
}

// With CUDASIM_ALIGNMENT=4 a buffer of floats ends at its guard page, so that reads whose result
// does not matter are reported, too.
TEST_F(BugsTest, AReadBehindABufferThatEndsAtItsGuardPageIsReported) {
  size_t& alignment = cudasim::runtime::GetSettings().alignment;
  alignment = 4;
  const Outcome outcome = RunBug(PlantedBug::kGlobalPastEnd, true, kOdd);
  alignment = 256;
  ASSERT_FALSE(outcome.reports.empty());
  std::string report = outcome.reports.front();
  for (char& c : report) c = c == '\n' ? ' ' : c;
  EXPECT_THAT(report, ContainsRegex("GlobalPastEndKernel, block .*thread \\(17,0,0\\) of .*[, ] 0 "
                                    "bytes after device memory 0x[0-9a-f]+ of 2036 bytes"));
}

// Where races are not sought, they show as a wrong result in one of the orders.
TEST_F(BugsTest, ShowInResultsOfSomeOrder) {
  for (PlantedBug bug : {PlantedBug::kMissingBarrier, PlantedBug::kMissingBarrierAfterRead,
                         PlantedBug::kMissingSyncWarp, PlantedBug::kMissingAsyncWait,
                         PlantedBug::kMissingAsyncBarrier, PlantedBug::kUninitialisedShared,
                         PlantedBug::kUninitialisedGlobal, PlantedBug::kGlobalRaceInBlock}) {
    SCOPED_TRACE(static_cast<int>(bug));
    bool seen = false;
    for (cudasim::Order order :
         {cudasim::Order::kForward, cudasim::Order::kReverse, cudasim::Order::kRandom}) {
      settings_->order = order;
      // The lanes of a warp run together but now and then.
      const uint64_t seeds = order == cudasim::Order::kRandom ? 50 : 1;
      for (settings_->seed = 1; settings_->seed <= seeds && !seen; ++settings_->seed) {
        const Outcome outcome = RunBug(bug, true);
        ASSERT_FALSE(outcome.failed);
        for (float y : outcome.y) seen = seen || y != 2;  // NaN is not 2 either
      }
    }
    EXPECT_TRUE(seen);
  }
}

TEST_F(BugsTest, TheSameKernelsWithoutThemAreNotReported) {
  settings_->find_races = true;
  for (cudasim::Order order :
       {cudasim::Order::kForward, cudasim::Order::kReverse, cudasim::Order::kRandom}) {
    settings_->order = order;
    for (int bug = 0; bug <= static_cast<int>(PlantedBug::kAssert); ++bug) {
      SCOPED_TRACE(bug);
      const Outcome outcome = RunBug(static_cast<PlantedBug>(bug), false);
      EXPECT_THAT(outcome.reports, ::testing::IsEmpty());
      ASSERT_FALSE(outcome.failed);
      EXPECT_THAT(outcome.y, ::testing::Each(2.0f));
    }
  }
}

TEST_F(BugsTest, ExitedThreadsCanBeAllowed) {
  settings_->report_exited = false;
  const Outcome outcome = RunBug(PlantedBug::kExitBeforeBarrier, true);
  EXPECT_FALSE(outcome.failed);
  EXPECT_THAT(outcome.reports, ::testing::IsEmpty());
}

}  // namespace
}  // namespace lockstep
