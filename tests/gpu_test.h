// Tests of what runs on a GPU, real or simulated.
#pragma once

#include <gtest/gtest.h>

#include <utility>

#include "core/cuda/device.h"
#include "core/cuda/error.h"  // CUDASIM
#ifdef CUDASIM
#include "cudasim/settings.h"
#endif

namespace lockstep::test {

inline constexpr Device kGpu{DeviceType::kCuda, 0};

// With --config=cuda on a machine without a GPU there is nothing to test.
class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::DeviceCount() == 0) GTEST_SKIP() << "there is no GPU here";
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

#ifdef CUDASIM
// During its lifetime simulated GPUs have ten times this compute capability.
class Capability {
 public:
  explicit Capability(int capability)
      : before_(std::exchange(cudasim::runtime::GetSettings().capability, capability)) {}
  ~Capability() { cudasim::runtime::GetSettings().capability = before_; }
  Capability(const Capability&) = delete;
  Capability& operator=(const Capability&) = delete;

 private:
  const int before_;
};
#endif

}  // namespace lockstep::test
