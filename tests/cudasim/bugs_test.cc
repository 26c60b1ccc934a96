// Every planted bug is caught, with the name of the kernel and, where the detector knows it, the
// line; the same kernel without the bug is not reported. Which build catches what:
// tools/cudasim/README.md.
#include "tests/cudasim/bugs.h"

#include <gmock/gmock-more-matchers.h>

#include <cmath>
#include <string>

#include "cudasim/settings.h"
#include "tests/cudasim/device_buffer.h"

#ifdef __SANITIZE_ADDRESS__
constexpr bool kAsan = true;
#else
constexpr bool kAsan = false;
#endif
#ifdef CUDASIM_RACE
constexpr bool kRaceChecker = true;
#else
constexpr bool kRaceChecker = false;
#endif
// With --config=ptx the kernels are nvcc's.
#ifdef CUDASIM_PTX
constexpr bool kPtx = true;
#else
constexpr bool kPtx = false;
#endif

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

// A bug that is reported as text, in the builds where it is.
struct Reported {
  PlantedBug bug;
  const char* kind;
  const char* kernel;
  const char* text;  // a regular expression
  bool here = true;
};

#ifdef CUDASIM_PTX
// nvcc has merged the barriers of kBarrierInBranch, and removed the arrays of kSharedPastEndWrite.
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
#else
const Reported kReported[] = {
    {PlantedBug::kBarrierInBranch, "barrier divergence", "BarrierInBranchKernel",
     "thread \\(32,0,0\\) of .*this thread is at the __syncthreads at .*bugs.cu:[0-9]+:[0-9]+, "
     "threads 0-31 are at the one at .*bugs.cu:[0-9]+:[0-9]+"},
    {PlantedBug::kBarrierInHalfTheThreads, "barrier divergence", "BarrierInHalfTheThreadsKernel",
     "wait in __syncthreads at .*bugs.cu:[0-9]+:[0-9]+, and threads 1, 3, 5"},
    {PlantedBug::kExitBeforeBarrier, "barrier divergence", "ExitBeforeBarrierKernel",
     "threads 0-60 wait in .*bugs.cu:[0-9]+:[0-9]+, and threads 61-63 have exited"},
    {PlantedBug::kLoopBarrierUneven, "barrier divergence", "LoopBarrierUnevenKernel",
     "threads 16-63 wait in .*bugs.cu:[0-9]+:[0-9]+, and threads 0-15 have exited"},
    {PlantedBug::kShuffleInBranch, "warp collective with missing lanes", "ShuffleInBranchKernel",
     "__shfl_xor_sync at .*bugs.cu:[0-9]+:[0-9]+ waits forever.*lanes 16-31 of warp 0 wait in "
     "__syncthreads at .*bugs.cu:[0-9]+"},
    {PlantedBug::kShuffleTwoPlaces, "warp collective with missing lanes", "ShuffleTwoPlacesKernel",
     "different collectives.*lanes 0-15 of warp 0 wait in __shfl_xor_sync at .*bugs.cu.*lanes "
     "16-31 "
     "of warp 0 wait in __shfl_xor_sync at .*bugs.cu"},
    {PlantedBug::kShuffleFromAbsentLane, "warp collective with missing lanes",
     "ShuffleFromAbsentLaneKernel",
     "shuffle at .*bugs.cu:[0-9]+:[0-9]+ gives lane 0 the value of lane 16"},
    {PlantedBug::kShuffleNotInMask, "warp collective with missing lanes", "ShuffleNotInMaskKernel",
     "bugs.cu:[0-9]+:[0-9]+ by lane 16, which its mask 0xffff leaves out"},
    {PlantedBug::kMisalignedAsync, "misaligned access", "MisalignedAsyncKernel",
     "cp.async at .*cp_async.cuh:[0-9]+:[0-9]+: .* aligned to 16 bytes"},
    {PlantedBug::kTrap, "trap", "TrapKernel", "thread \\(9,0,0\\) of .*bugs.cu:[0-9]+"},
#ifndef NDEBUG
    {PlantedBug::kAssert, "assertion failed", "AssertKernel",
     "thread \\(9,0,0\\) of .*bugs.cu:[0-9]+.*threadIdx.x != 9"},
#endif
    {PlantedBug::kTooMuchStaticShared, "bug", "TooMuchStaticSharedKernel",
     "more than 49152 bytes of static shared memory.* second at .*bugs.cu:[0-9]+"},
    // Found by redzones at the end of the block; by sanitizers at the access itself.
    {PlantedBug::kSharedPastEndWrite, "access out of bounds", "SharedPastEndWriteKernel",
     "thread wrote 0 bytes past the end of before \\(256 bytes\\), declared at .*bugs.cu:[0-9]+",
     !kAsan && !kRaceChecker},
    {PlantedBug::kDynamicSharedPastEnd, "access out of bounds", "DynamicSharedPastEndKernel",
     "wrote 12 bytes past the end of dynamic shared memory \\(256 bytes\\)",
     !kAsan && !kRaceChecker},
    // Guard pages around every buffer.
    {PlantedBug::kGlobalPastEnd, "access out of bounds", "GlobalPastEndKernel",
     "thread \\(17,0,0\\) of .*0 bytes after ", !kAsan},
    {PlantedBug::kGlobalPastEndWrite, "access out of bounds", "GlobalPastEndWriteKernel",
     "thread \\(17,0,0\\) of .*0 bytes after ", !kAsan},
    // The race checker.
    {PlantedBug::kSharedPastEndWrite, "access out of bounds", "SharedPastEndWriteKernel",
     "thread \\(63,0,0\\) of .*write of 4 bytes at .*bugs.cu:[0-9]+ outside of before",
     kRaceChecker},
    {PlantedBug::kSharedPastEndRead, "access out of bounds", "SharedPastEndReadKernel",
     "thread \\(63,0,0\\) of .*read of 4 bytes at .*bugs.cu:[0-9]+ outside of values",
     kRaceChecker},
    {PlantedBug::kMissingBarrier, "data race", "MissingBarrierKernel",
     "values.*bugs.cu:[0-9]+.*bugs.cu:[0-9]+", kRaceChecker},
    {PlantedBug::kMissingBarrierAfterRead, "data race", "MissingBarrierAfterReadKernel",
     "values.*bugs.cu:[0-9]+.*bugs.cu:[0-9]+", kRaceChecker},
    {PlantedBug::kMissingSyncWarp, "data race", "MissingSyncWarpKernel",
     "values.*bugs.cu:[0-9]+.*bugs.cu:[0-9]+", kRaceChecker},
    {PlantedBug::kMissingAsyncBarrier, "data race", "MissingAsyncBarrierKernel", "values",
     kRaceChecker},
    {PlantedBug::kGlobalRaceBetweenBlocks, "data race", "GlobalRaceBetweenBlocksKernel",
     "bugs.cu:[0-9]+.*block", kRaceChecker},
    {PlantedBug::kGlobalRaceInBlock, "data race", "GlobalRaceInBlockKernel",
     "bugs.cu:[0-9]+.*bugs.cu:[0-9]+", kRaceChecker},
    {PlantedBug::kLastBlockWithoutFence, "data race", "LastBlockWithoutFenceKernel",
     "bugs.cu:[0-9]+.*bugs.cu:[0-9]+", kRaceChecker},
};
#endif

class BugsTest : public ::testing::Test {
 protected:
  BugsTest() { settings_->abort_on_bug = false; }
  ~BugsTest() override { EXPECT_EQ(cudaDeviceReset(), cudaSuccess); }
  ScopedSettings settings_;
};

TEST_F(BugsTest, AreReported) {
  settings_->find_races = true;
  for (const Reported& expected : kReported) {
    if (!expected.here) continue;
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
  if (kAsan) GTEST_SKIP() << "AddressSanitizer ends the process";
  const Outcome outcome = RunBug(PlantedBug::kGlobalPastEndWrite, true, kOdd);
  EXPECT_TRUE(outcome.failed);
  ASSERT_FALSE(outcome.reports.empty());
  EXPECT_THAT(outcome.reports.front(), HasSubstr("access out of bounds"));
  EXPECT_THAT(outcome.reports.front(),
              ContainsRegex(kPtx ? "0 bytes after device memory 0x[0-9a-f]+ of 2036 bytes"
                            : kRaceChecker
                                ? "write of 4 bytes at .*bugs.cu:[0-9]+.*, 0 bytes after device "
                                  "memory 0x[0-9a-f]+ of 2036 bytes"
                                : "found after kernel .*GlobalPastEndWriteKernel: bytes 0 to 3 "
                                  "after it were overwritten: device memory 0x[0-9a-f]+ of 2036"));
}

TEST_F(BugsTest, AWriteJustBeforeABufferIsReportedWithItsKernel) {
  if (kAsan) GTEST_SKIP() << "AddressSanitizer ends the process";
  const Outcome outcome = RunBug(PlantedBug::kGlobalBeforeBegin, true, kOdd);
  EXPECT_TRUE(outcome.failed);
  ASSERT_FALSE(outcome.reports.empty());
  EXPECT_THAT(outcome.reports.front(),
              ContainsRegex(kPtx ? "4 bytes before device memory 0x[0-9a-f]+ of 2036 bytes"
                            : kRaceChecker
                                ? "write of 4 bytes at .*bugs.cu:[0-9]+.*, 4 bytes before device "
                                  "memory 0x[0-9a-f]+ of 2036 bytes"
                                : "found after kernel .*GlobalBeforeBeginKernel: bytes 1 to 4 "
                                  "before it were overwritten: device memory 0x[0-9a-f]+ of 2036"));
}

// What is read there is NaN, which shows in the result; the race checker and the machine for PTX
// report the read itself.
TEST_F(BugsTest, AReadJustBehindABufferShows) {
  if (kAsan) GTEST_SKIP() << "AddressSanitizer ends the process";
  const Outcome outcome = RunBug(PlantedBug::kGlobalPastEnd, true, kOdd);
  if (kPtx) {
    ASSERT_FALSE(outcome.reports.empty());
    EXPECT_THAT(outcome.reports.front(),
                ContainsRegex("0 bytes after device memory 0x[0-9a-f]+ of 2036 bytes"));
  } else if (kRaceChecker) {
    ASSERT_FALSE(outcome.reports.empty());
    EXPECT_THAT(outcome.reports.front(),
                ContainsRegex("read of 4 bytes at .*bugs.cu:[0-9]+.*, 0 bytes after device memory "
                              "0x[0-9a-f]+ of 2036 bytes"));
  } else {
    ASSERT_FALSE(outcome.failed);
    EXPECT_TRUE(std::isnan(outcome.y[17]));
  }
}

// With CUDASIM_ALIGNMENT=4 a buffer of floats ends at its guard page, so that reads whose result
// does not matter are reported, too.
TEST_F(BugsTest, AReadBehindABufferThatEndsAtItsGuardPageIsReported) {
  if (kAsan) GTEST_SKIP() << "AddressSanitizer ends the process";
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

// Bugs that no detector reports show as a wrong result in one of the orders.
TEST_F(BugsTest, ShowInResultsOfSomeOrder) {
  if (kAsan || kRaceChecker) GTEST_SKIP() << "these builds report the bugs themselves";
  for (PlantedBug bug : {PlantedBug::kMissingBarrier, PlantedBug::kMissingBarrierAfterRead,
                         PlantedBug::kMissingSyncWarp, PlantedBug::kMissingAsyncWait,
                         PlantedBug::kMissingAsyncBarrier, PlantedBug::kUninitialisedShared,
                         PlantedBug::kUninitialisedGlobal, PlantedBug::kGlobalRaceInBlock}) {
    SCOPED_TRACE(static_cast<int>(bug));
    bool seen = false;
    for (cudasim::Order order :
         {cudasim::Order::kForward, cudasim::Order::kReverse, cudasim::Order::kRandom}) {
      settings_->order = order;
      // The machine for PTX runs the lanes of a warp together but now and then.
      const uint64_t seeds = kPtx && order == cudasim::Order::kRandom ? 50 : 1;
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
    for (int bug = 0; bug <= static_cast<int>(PlantedBug::kTooMuchStaticShared); ++bug) {
      // nvcc refuses it.
      if (kPtx && bug == static_cast<int>(PlantedBug::kTooMuchStaticShared)) continue;
      SCOPED_TRACE(bug);
      const Outcome outcome = RunBug(static_cast<PlantedBug>(bug), false);
      EXPECT_THAT(outcome.reports, ::testing::IsEmpty());
      ASSERT_FALSE(outcome.failed);
      EXPECT_THAT(outcome.y, ::testing::Each(2.0f));
    }
  }
}

#ifdef __SANITIZE_ADDRESS__
// AddressSanitizer ends the process; its text has the line, and the simulator's the thread.
TEST(BugsDeathTest, AreFoundByAddressSanitizer) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (PlantedBug bug : {PlantedBug::kGlobalPastEnd, PlantedBug::kGlobalPastEndWrite,
                         PlantedBug::kGlobalBeforeBegin, PlantedBug::kSharedPastEndWrite,
                         PlantedBug::kSharedPastEndRead, PlantedBug::kDynamicSharedPastEnd}) {
    EXPECT_DEATH(RunBug(bug, true),
                 "bugs.cu:[0-9]+(.|\n)*kernel .*Kernel, block .0,0,0. of .1,1,1., thread |"
                 "kernel .*Kernel, block .0,0,0. of .1,1,1., thread (.|\n)*bugs.cu")
        << static_cast<int>(bug);
  }
}
#endif

#if defined(CUDASIM_UBSAN)  // g++ defines no macro for it
TEST(BugsDeathTest, MisalignedAccessIsFoundByUndefinedBehaviorSanitizer) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(RunBug(PlantedBug::kMisalignedVector, true),
               "kernel .*MisalignedVectorKernel, block ");
}
#endif

TEST_F(BugsTest, ExitedThreadsCanBeAllowed) {
  settings_->report_exited = false;
  const Outcome outcome = RunBug(PlantedBug::kExitBeforeBarrier, true);
  EXPECT_FALSE(outcome.failed);
  EXPECT_THAT(outcome.reports, ::testing::IsEmpty());
}

}  // namespace
}  // namespace lockstep
