// The bugs of nvcc/planted.cu, as nvcc compiled them, are caught; the same kernels without them run
// in every order, are right, and are not reported.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>

#include "tools/cudasim/ptx/image.h"
#include "tools/cudasim/ptx/launch.h"

namespace cudasim::ptx {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

struct Planted {
  const char* name;
  Bug bug;  // kOther: shows as a wrong result, since nvcc has taken the kernel at its word
  const char* text;
  uint32_t blocks = 1;
};

const Planted kPlanted[] = {
    // Lanes of a warp.
    {"MissingSyncWarp", Bug::kRace, "which thread (1,0,0) wrote, and nothing"},
    {"MissingSyncWarpAfterRead", Bug::kRace,
     "writes shared memory at byte 0, which thread (1,0,0)"},
    {"SyncWarpOfHalves", Bug::kRace, "which thread (16,0,0) wrote"},
    {"ShuffleTakenForBarrier", Bug::kRace, "which thread (1,0,0) wrote"},
    {"VoteTakenForBarrier", Bug::kRace, "which thread (1,0,0) wrote"},
    {"TwoLanesOneWord", Bug::kRace, "writes shared memory at byte 0, which thread (0,0,0) wrote"},
    {"DifferentValuesOneWord", Bug::kRace, "writes shared memory at byte 0, which thread (0,0,0)"},
    {"HalvesOfAWarp", Bug::kRace, "which thread (16,0,0) read"},
    {"GlobalBetweenLanes", Bug::kRace, "reads global memory at 0x"},
    // Warps of a block.
    {"NamedBarrierOfOneWarp", Bug::kRace, "which thread (63,0,0)"},
    {"ConsumerOnlyArrives", Bug::kRace, "which thread (0,0,0) wrote"},
    {"BetweenTwoBarriers", Bug::kRace, "and nothing orders the two"},
    {"OneBufferTooFew", Bug::kRace, "and nothing orders the two"},
    {"GenericAddress", Bug::kRace, "PTX line"},
    {"AtomicAndPlain", Bug::kRace, "accessed atomically"},
    {"CounterZeroedByOneLane", Bug::kRace, "which thread (0,0,0) wrote"},
    {"FlagWithoutFence", Bug::kRace, "reads shared memory at byte"},
    {"GlobalBetweenWarps", Bug::kRace, "global memory at 0x"},
    // Blocks of a grid.
    {"TwoBlocksOneElement", Bug::kRace, "which thread (5,0,0) of block (0,0,0) wrote", 2},
    {"LastBlockWithoutFence", Bug::kRace, "thread (0,0,0) of block (0,0,0) wrote", 2},
    {"LastBlockFencesLate", Bug::kRace, "thread (0,0,0) of block (0,0,0) wrote", 2},
    {"LastBlockFencesForItself", Bug::kRace, "thread (0,0,0) of block (0,0,0) wrote", 2},
    {"LastBlockCountsForItself", Bug::kRace, "accessed atomically", 2},
    {"SwapWithoutComparing", Bug::kRace, "reads global memory at 0x", 2},
    {"CounterResetBeforeTheLast", Bug::kRace, "thread (0,0,0) of block (0,0,0) wrote", 2},
    {"PlainFlagBetweenBlocks", Bug::kRace, "thread (0,0,0) of block (0,0,0) wrote", 2},
    {"FenceOfOneBeforeTheBarrier", Bug::kRace, "thread (1,0,0) of block (0,0,0) wrote", 2},
    {"LockWithoutFence", Bug::kRace, "and nothing orders the two", 2},
    {"RelaxedInsteadOfRelease", Bug::kRace, "thread (0,0,0) of block (0,0,0) wrote", 2},
    // cp.async.
    {"OneGroupTooFew", Bug::kMissingWait, "has begun a copy, and not waited for it"},
    {"CommitLeftOut", Bug::kMissingWait, "has begun a copy"},
    {"WaitInABranch", Bug::kMissingWait, "to which thread (16,0,0) has begun"},
    {"WaitAfterTheBarrier", Bug::kMissingWait, "to which thread (63,0,0) has begun"},
    {"BarrierAfterTheWaitLeftOut", Bug::kRace, "copies by cp.async to shared memory"},
    {"StoreIntoACopy", Bug::kMissingWait, "writes shared memory at byte 0"},
    {"TwoCopiesOneTarget", Bug::kMissingWait, "copies by cp.async to shared memory"},
    {"CopyOverReaders", Bug::kRace, "cp.async"},
    // Inline assembly.
    {"LoadWithoutClobber", Bug::kUninitialised, "which was not written before"},
    {"AtomicNotVolatile", Bug::kOther, ""},
    {"StoreNotVolatile", Bug::kOther, ""},
    {"ReadOnlyLoadOfWhatIsWritten", Bug::kRace, "ld.global.nc"},
    // Alignment.
    {"MisalignedVector", Bug::kMisaligned, "16 bytes at address"},
    {"MisalignedSharedVector", Bug::kMisaligned, "8 bytes at address"},
    {"MisalignedMatrixRow", Bug::kMisaligned, "ldmatrix"},
    {"MisalignedCopy", Bug::kMisaligned, "8 bytes at address"},
    // What was never written.
    {"LastElementNeverWritten", Bug::kUninitialised, "byte 252, which was not written before"},
    {"CounterNeverZeroed", Bug::kUninitialised, "which was not written before"},
    {"MatrixRowNeverWritten", Bug::kUninitialised, "byte 112, which was not written before"},
    // Who takes part.
    {"MatrixProductOfHalfAWarp", Bug::kMissingLanes, "only a part of the warp"},
    {"BarrierForTooManyThreads", Bug::kBarrierDivergence, "at barrier 1"},
    {"TwoNamedBarriers", Bug::kBarrierDivergence, "warp 1 at barrier 2"},
    {"SharedPastEnd", Bug::kOutOfBounds, "0x100 of shared memory, which has 256 bytes"},
};

class PlantedTest : public ::testing::Test {
 protected:
  static Image& TheImage() {
    static auto* const image = [] {
      std::ifstream stream("tests/cudasim/ptx/testdata/planted.ptx");
      return new Image(std::string(std::istreambuf_iterator<char>(stream), {}));
    }();
    return *image;
  }

  // y of the first block's threads. Throws Fault.
  static std::vector<float> Run(const std::string& name, uint32_t blocks,
                                const Settings& settings) {
    constexpr size_t kFloats = 1024;
    alignas(16) static float x[kFloats];
    for (size_t i = 0; i < kFloats; ++i) x[i] = static_cast<float>(i);
    std::vector<float> y(64);
    unsigned z[2] = {};
    Launch launch;
    launch.program = TheImage().FindKernel(name);
    if (launch.program == nullptr) throw std::runtime_error("no kernel " + name);
    launch.grid = {blocks};
    launch.block = {64};
    void *px = x, *py = y.data(), *pz = z;
    void* arguments[] = {&px, &py, &pz};
    launch.parameters = PackParameters(*launch.program, arguments);
    ptx::Run(launch, settings);
    return y;
  }
};

TEST_F(PlantedTest, BugsAreCaught) {
  Settings settings;
  settings.find_races = true;
  for (const Planted& planted : kPlanted) {
    SCOPED_TRACE(planted.name);
    const std::string name = planted.name + std::string("Bug");
    try {
      const std::vector<float> y = Run(name, planted.blocks, settings);
      EXPECT_EQ(planted.bug, Bug::kOther) << "it is not reported";
      EXPECT_THAT(y, ::testing::Not(Each(2.0f)));
    } catch (const Fault& fault) {
      EXPECT_EQ(fault.bug, planted.bug) << fault.what();
      EXPECT_THAT(fault.what(), HasSubstr(planted.text));
      EXPECT_THAT(fault.what(), HasSubstr("kernel " + name + ", block ("));
      EXPECT_THAT(fault.what(), HasSubstr("planted.cu:"));
    }
  }
}

TEST_F(PlantedTest, TheSameKernelsWithoutThemAreNot) {
  for (Settings::Order order :
       {Settings::Order::kForward, Settings::Order::kReverse, Settings::Order::kRandom}) {
    for (uint64_t seed = 1; seed <= (order == Settings::Order::kRandom ? 8 : 1); ++seed) {
      Settings settings;
      settings.order = order;
      settings.seed = seed;
      settings.find_races = seed % 2 == 1;
      for (const Planted& planted : kPlanted) {
        SCOPED_TRACE(planted.name);
        try {
          EXPECT_THAT(Run(planted.name + std::string("Right"), planted.blocks, settings),
                      Each(2.0f));
        } catch (const Fault& fault) {
          ADD_FAILURE() << fault.what();
        }
      }
    }
  }
}

// Lanes need not run in lockstep, so that a race within a warp shows as a wrong result, too; and
// the report of a race gives the seed of its order.
TEST_F(PlantedTest, ARaceWithinAWarpShowsInARandomOrder) {
  Settings settings;
  settings.order = Settings::Order::kRandom;
  bool shows = false;
  for (settings.seed = 1; settings.seed <= 50 && !shows; ++settings.seed) {
    for (float y : Run("MissingSyncWarpBug", 1, settings)) shows = shows || y != 2;
  }
  EXPECT_TRUE(shows);
  settings.find_races = true;
  settings.seed = 17;
  try {
    Run("MissingSyncWarpBug", 1, settings);
    ADD_FAILURE() << "it is not reported";
  } catch (const Fault& fault) {
    EXPECT_THAT(fault.what(), HasSubstr("CUDASIM_ORDER=random:17"));
  }
}

}  // namespace
}  // namespace cudasim::ptx
