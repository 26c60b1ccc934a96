// A rank uses only its own GPU. This test needs a separate process, because contexts stay open.
#include <cuda_runtime.h>
#include <gmock/gmock-matchers.h>

#include <chrono>
#include <memory>
#include <thread>

#include "core/cuda/device.h"
#include "core/host_read.h"
#include "cudasim/contexts.h"
#include "dist/groups/nccl_group.h"
#include "tests/dist/in_process.h"

namespace lockstep::dist {
namespace {

// CUDA opens a context of a few hundred megabytes on the current device of any thread that calls
// it: with a thread that never sets its device, eight ranks open eight contexts on GPU 0.
TEST(NcclContextTest, NoThreadOfARankOpensOneOnGpu0) {
  if (!cuda::Simulated() || cuda::DeviceCount() < 2) {
    GTEST_SKIP() << "only simulated GPUs count their contexts";
  }
  const Device device{DeviceType::kCuda, 1};
  cuda::SetDevice(device);
  auto group = MakeNcclGroup(MakeLocalPlanes(1)[0], {.device = device});
  const Tensor x = Tensor::Full({5}, 3, DType::kF32, device);
  group->AllReduce(x)->Wait();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the watchdog looks at it
  const auto work = group->AllReduce(x);
  std::thread([&] { work->Synchronize(); }).join();
  work->Wait();
  std::unique_ptr<HostRead> read;
  std::thread([&] { read = std::make_unique<HostRead>(x); }).join();
  std::thread([&] {
    EXPECT_EQ(read->Get().ToVector<float>(), std::vector<float>(5, 3));
    read.reset();
  }).join();
  std::thread([&] { EXPECT_EQ(x.ToVector<float>(), std::vector<float>(5, 3)); }).join();
  std::thread([&] { Tensor::FromVector<float>({1, 2}, {2}, device); }).join();
  std::thread([&] { group.reset(); }).join();
  EXPECT_THAT(cudasim::runtime::DevicesWithContext(), testing::ElementsAre(1));
}

}  // namespace
}  // namespace lockstep::dist
