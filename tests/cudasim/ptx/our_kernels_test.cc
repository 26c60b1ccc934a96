#include "tests/cudasim/ptx/our_kernels.h"

#include <gtest/gtest.h>

namespace cudasim::ptx {
namespace {

TEST(OurKernelsTest, ResultsAreWithinTheOpCasesTolerances) {
  for (KernelRun& run : OurKernels()) {
    Settings settings;
    settings.threads = 2;
    ptx::Run(run.launch, settings);
    EXPECT_LE(run.error(), 1) << run.name;
  }
}

TEST(OurKernelsTest, TurnsDoNotMatterAndNothingRaces) {
  for (KernelRun& run : OurKernels()) {
    if (run.launch.grid.x > 1000) run.launch.grid.x = 40;  // enough, and quick
    Settings settings;
    settings.order = Settings::Order::kRandom;
    settings.find_races = true;
    EXPECT_NO_THROW(ptx::Run(run.launch, settings)) << run.name;
  }
}

}  // namespace
}  // namespace cudasim::ptx
