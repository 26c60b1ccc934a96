#include "core/cuda/device.h"

#include <gmock/gmock-matchers.h>

#include "tests/core/cuda/support.h"

namespace lockstep::cuda {
namespace {

using testing::HasSubstr;

// The text of the InputError for this device.
std::string ErrorOf(const std::string& text) {
  try {
    ParseDevice(text);
  } catch (const InputError& error) {
    return error.what();
  }
  ADD_FAILURE() << text << " is accepted";
  return "";
}

TEST(DeviceTest, TheCpuIsAlwaysThere) {
  EXPECT_EQ(ParseDevice("cpu"), kCpu);
  if (!Simulated()) return;
  EXPECT_EQ(ParseDevice("auto"), kCpu) << "simulation is never silent";
}

TEST(DeviceTest, NamesThatAreNone) {
  for (const char* text : {"", "gpu", "sim:", "cuda:x", "cuda:-1", "sim:1x", "cpu:0", "auto:0",
                           "sim:99999999999999999999", " sim", "SIM"}) {
    EXPECT_THAT(ErrorOf(text), HasSubstr("is not a device; use auto, cpu, cuda, cuda:0, sim or"))
        << text;
  }
}

TEST(DeviceTest, TheOtherBackendIsAnErrorThatSaysWhatToDo) {
  if (Simulated()) {
    EXPECT_THAT(ErrorOf("cuda"), HasSubstr("Build with --config=cuda"));
    EXPECT_THAT(ErrorOf("cuda:1"), HasSubstr("or use --device=sim"));
  } else {
    EXPECT_THAT(ErrorOf("sim"), HasSubstr("LOCKSTEP_SIMULATED_GPU"));
  }
}

TEST(DeviceTest, SimulatedDevices) {
  if (!Simulated()) GTEST_SKIP() << "the GPUs of this build are real";
  const int count = DeviceCount();
  ASSERT_EQ(count, 2) << "the simulator's default";
  EXPECT_EQ(ParseDevice("sim"), kGpu);
  EXPECT_EQ(ParseDevice("sim:1"), kSecondGpu);
  EXPECT_EQ(ToString(kSecondGpu), "sim:1");
  EXPECT_THAT(ErrorOf("sim:2"),
              HasSubstr("there are 2 devices, sim:0 to sim:1; CUDASIM_DEVICES=n"));
}

}  // namespace
}  // namespace lockstep::cuda
