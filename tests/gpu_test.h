// Tests of what runs on a GPU, real or simulated.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "core/cuda/device.h"
#include "core/error.h"
#include "core/io/file.h"

namespace cudasim {
struct ExecutorSettings;
[[gnu::weak]] ExecutorSettings& GetExecutorSettings();
}  // namespace cudasim

namespace lockstep::test {

inline constexpr Device kGpu{DeviceType::kCuda, 0};

// Without a GPU, and without nvcc for simulated ones, there is nothing to test.
class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::DeviceCount() == 0) GTEST_SKIP() << "there is no GPU here";
  }
};

// Whether a test can tell the simulator what to do: it is part of the program.
inline bool ContainsSimulator() { return &cudasim::GetExecutorSettings != nullptr; }

// For what only simulated GPUs can be told to do.
class SimulatedGpuTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!ContainsSimulator()) GTEST_SKIP() << "this program does not contain a simulator";
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

// Why the programs that a test runs do not find this many GPUs; empty if they do. Simulated ones
// are in a library that is not built where there is no nvcc.
inline std::string WhyProgramsHaveNoGpus(int n) {
  if (cuda::Simulated()) {
    return PathExists("kernels/libsimulated_gpu.so") ? "" : "without nvcc no GPU is simulated";
  }
  return cuda::DeviceCount() < n ? StrCat("this needs ", n, " GPUs") : "";
}

}  // namespace lockstep::test

// Skips a test that runs programs on GPUs where there are fewer than n.
#define SKIP_UNLESS_PROGRAMS_HAVE_GPUS(n)                                                       \
  if (const std::string why_not = ::lockstep::test::WhyProgramsHaveNoGpus(n); !why_not.empty()) \
  GTEST_SKIP() << why_not
