// Tests of what runs on a GPU, real or simulated.
#pragma once

#include <gtest/gtest.h>

#include "core/cuda/device.h"

namespace lockstep::test {

inline constexpr Device kGpu{DeviceType::kCuda, 0};

// With --config=cuda on a machine without a GPU there is nothing to test.
class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::DeviceCount() == 0) GTEST_SKIP() << "there is no GPU here";
  }
};

// For what only simulated GPUs can be told to do.
class SimulatedGpuTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!cuda::Simulated()) GTEST_SKIP() << "the GPUs of this build are real";
  }
};

// The same for tests that run on the CPU and on a GPU.
class DeviceTest : public testing::TestWithParam<Device> {
 protected:
  void SetUp() final {
    if (GetParam().is_cuda() && cuda::DeviceCount() == 0) GTEST_SKIP() << "there is no GPU here";
    Prepare();
  }
  virtual void Prepare() {}
};
inline auto Devices() { return testing::Values(kCpu, kGpu); }

}  // namespace lockstep::test
