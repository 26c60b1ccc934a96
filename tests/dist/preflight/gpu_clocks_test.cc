#include <dlfcn.h>
#include <gmock/gmock-matchers.h>

#include "dist/preflight/gpu_facts.h"

namespace lockstep::dist {
namespace {

// The next one that asks for NVIDIA's library gets this one, which has its name.
TEST(GpuClocks, AreThoseOfNvml) {
  ASSERT_NE(dlopen("tests/dist/preflight/fake_nvml.so", RTLD_NOW), nullptr) << dlerror();
  const auto clocks = ClocksOfGpu("0000:1B:00.0");
  ASSERT_TRUE(clocks);
  EXPECT_EQ(clocks->mhz, 345);
  EXPECT_EQ(clocks->most_mhz, 1980);
  EXPECT_EQ(clocks->slowed_by.size(), 1u) << "an idle GPU is not held back";
  EXPECT_EQ(ClocksOfGpu("0000:2B:00.0"), std::nullopt);
}

}  // namespace
}  // namespace lockstep::dist
