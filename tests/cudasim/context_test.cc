// On which devices a process opens contexts. One test: they stay open.
#include <gmock/gmock-matchers.h>

#include <thread>

#include "cudasim/contexts.h"
#include "tests/cudasim/support.h"

namespace cudasim_test {
namespace {

using cudasim::runtime::DevicesWithContext;
using testing::ElementsAre;

TEST(ContextTest, OpenWhereAThreadWorksWithoutHavingChosen) {
  int count = 0;
  cudaDeviceProp properties;
  CUDA_OK(cudaGetDeviceCount(&count));
  CUDA_OK(cudaGetDeviceProperties(&properties, 0));
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_THAT(DevicesWithContext(), ElementsAre()) << "asking opens none";
  CUDA_OK(cudaSetDevice(1));
  EXPECT_THAT(DevicesWithContext(), ElementsAre(1));
  cudaEvent_t event = nullptr;
  CUDA_OK(cudaEventCreate(&event));
  CUDA_OK(cudaEventRecord(event, nullptr));
  CUDA_OK(cudaEventSynchronize(event));
  std::thread([&] {
    EXPECT_EQ(cudaSetDevice(1), cudaSuccess);
    EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  }).join();
  EXPECT_THAT(DevicesWithContext(), ElementsAre(1));
  std::thread([&] { EXPECT_EQ(cudaEventQuery(event), cudaSuccess); }).join();
  EXPECT_THAT(DevicesWithContext(), ElementsAre(0, 1)) << "the thread's own device is 0";
  CUDA_OK(cudaEventDestroy(event));
  CUDA_OK(cudaDeviceReset());
  EXPECT_THAT(DevicesWithContext(), ElementsAre(0));
}

}  // namespace
}  // namespace cudasim_test
