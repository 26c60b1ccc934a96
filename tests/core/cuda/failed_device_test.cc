// Memory freed after the device has failed, after its stream, or after main: none of this may end
// the process. Each test runs in its own process.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "core/cuda/handles.h"
#include "core/host_read.h"
#include "core/tensor.h"
#include "tests/core/cuda/support.h"

namespace lockstep::cuda {
namespace {

// With the BUILD file's setting, a bug that the simulator finds does not end the process, but
// becomes a sticky error of the device, like a faulty kernel's.
void BreakDevice() {
  void* data = nullptr;
  LS_CUDA(cudaMalloc(&data, 64));
  LS_CUDA(cudaFree(data));
  cudaFree(data);
  cudaGetLastError();
}

// The default stream's memory, which work on `stream` uses, too.
Tensor UsedBy(Stream stream) {
  const Tensor x = Tensor::Full({1000}, 3, DType::kF32, kGpu);
  Event filled(kGpu);
  filled.Record(CurrentStream(kGpu));
  filled.Wait(stream);
  const StreamGuard guard(stream);
  x.Fill(4);
  x.storage().RecordUse(stream);
  return x;
}

[[noreturn]] void End(const char* word) {
  std::fprintf(stderr, "%s\n", word);
  std::exit(0);
}

Tensor tensor_of_the_process;

class FailedDeviceTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (!Simulated()) GTEST_SKIP() << "real devices are not broken";
    GTEST_FLAG_SET(death_test_style, "threadsafe");
  }
};

TEST_F(FailedDeviceTest, TheNamedErrorSurvivesUnwinding) {
  const auto run = [] {
    try {
      const OwnedStream stream(kGpu);
      const Tensor x = UsedBy(stream), y = UsedBy(stream);
      HostRead read(x);
      BreakDevice();
      y.Fill(7);  // throws
    } catch (const CudaError& error) {
      End(error.what());
    }
    std::exit(1);
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(0),
              "unspecified launch failure.*LOCKSTEP_CUDA_SYNC=1");
}

TEST_F(FailedDeviceTest, AStreamMayDieBeforeMemoryThatItUsed) {
  const auto run = [] {
    Tensor x;
    {
      const OwnedStream stream(kGpu);
      x = UsedBy(stream);
    }
    x = Tensor();
    const Tensor next = Tensor::Full({1000}, 5, DType::kF32, kGpu);
    if (next.ToVector<float>() == std::vector<float>(1000, 5)) End("well");
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "well");
}

TEST_F(FailedDeviceTest, AStreamMayDieBeforeItsOwnMemory) {
  const auto run = [] {
    Tensor x;
    const OwnedStream other(kGpu);
    {
      const OwnedStream stream(kGpu);
      const StreamGuard guard(stream);
      x = UsedBy(other);
    }
    Synchronize(other);
    if (x.ToVector<float>() != std::vector<float>(1000, 4)) End("wrong values");
    x = Tensor();
    End("well");
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "well");
}

TEST_F(FailedDeviceTest, AGuardMayOutliveTheOwnerOfItsStream) {
  const auto run = [] {
    auto stream = std::make_unique<OwnedStream>(kGpu);
    const StreamGuard guard(*stream);
    stream.reset();
    const Tensor x = Tensor::Full({1000}, 5, DType::kF32, kGpu);
    if (x.ToVector<float>() == std::vector<float>(1000, 5)) End("well");
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "well");
}

TEST_F(FailedDeviceTest, StaticTensorsAreFreedAtExit) {
  const auto run = [] {
    const OwnedStream stream(kGpu);
    tensor_of_the_process = UsedBy(stream);
    End("well");
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "well");
}

TEST_F(FailedDeviceTest, StaticTensorsAreFreedAtExitOfAFailedDevice) {
  const auto run = [] {
    const OwnedStream stream(kGpu);
    tensor_of_the_process = UsedBy(stream);
    BreakDevice();
    End("well");
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "well");
}

// One failure prints one line, however much is freed afterwards.
TEST_F(FailedDeviceTest, TheFailureIsNotRepeatedForEachTensor) {
  const auto run = [] {
    setenv("LOCKSTEP_CUDA_ALLOCATOR", "none", 1);  // each goes back to the driver
    std::vector<Tensor> tensors;
    for (int i = 0; i < 50; ++i) tensors.push_back(Tensor::Zeros({3}, DType::kF32, kGpu));
    BreakDevice();
    char text[4096] = {};
    std::fflush(stderr);
    std::FILE* const file = std::tmpfile();
    const int saved = dup(fileno(stderr));
    dup2(fileno(file), fileno(stderr));
    tensors.clear();
    std::fflush(stderr);
    dup2(saved, fileno(stderr));
    std::rewind(file);
    const size_t n = std::fread(text, 1, sizeof(text) - 1, file);
    if (std::count(text, text + n, '\n') <= 2) End("well");
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "well");
}

}  // namespace
}  // namespace lockstep::cuda
