// Launch configurations, sticky errors, and the check that streams order their uses of the same
// memory.
#include <gmock/gmock-matchers.h>

#include <cstdlib>
#include <thread>

#include "cudasim/bug.h"
#include "nvtx3/nvToolsExt.h"
#include "tests/cudasim/device_buffer.h"
#include "tests/cudasim/stream_kernels.h"
#include "tests/cudasim/support.h"

namespace cudasim_test {
namespace {

TEST(KernelTest, RefusesBadConfigurations) {
  const auto launch = [](dim3 grid, dim3 block, size_t shared) {
    return lockstep::RunNothing(nullptr, grid, block, shared);
  };
  EXPECT_EQ(launch(dim3(0), dim3(1), 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(dim3(1), dim3(0), 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(dim3(1), dim3(1025), 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(dim3(1), dim3(64, 32), 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(dim3(1), dim3(1, 1, 65), 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(dim3(1, 65536), dim3(1), 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(dim3(1), dim3(1), 49153), cudaErrorInvalidValue);
  CUDA_OK(launch(dim3(1), dim3(1), 49152));
  const void* const kernel = lockstep::NothingKernelFunction();
  const auto allow = [kernel](int bytes) {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  };
  EXPECT_EQ(allow(227 * 1024 + 1), cudaErrorInvalidValue);
  CUDA_OK(allow(227 * 1024));
  CUDA_OK(launch(dim3(1), dim3(1), 227 * 1024));
  cudaFuncAttributes attributes;
  CUDA_OK(cudaFuncGetAttributes(&attributes, kernel));
  EXPECT_EQ(attributes.maxDynamicSharedSizeBytes, 227 * 1024);
  int blocks = 0;
  CUDA_OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, 256, 100 * 1024));
  EXPECT_EQ(blocks, 2);
  CUDA_OK(cudaDeviceSynchronize());
  cudaGetLastError();
}

TEST(KernelTest, RefusesAnotherDevicesStream) {
  cudaStream_t stream = nullptr;
  CUDA_OK(cudaStreamCreate(&stream));
  CUDA_OK(cudaSetDevice(1));
  EXPECT_EQ(lockstep::RunNothing(stream, 1, 1, 0), cudaErrorInvalidResourceHandle);
  CUDA_OK(cudaSetDevice(0));
  CUDA_OK(cudaStreamDestroy(stream));
  cudaGetLastError();
}

class OrderingTest : public testing::Test {
 protected:
  OrderingTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  void SetUp() override {
    CUDA_OK(cudaStreamCreateWithFlags(&a_, cudaStreamNonBlocking));
    CUDA_OK(cudaStreamCreateWithFlags(&b_, cudaStreamNonBlocking));
    CUDA_OK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
    x_ = Upload<int>({1, 2});
    y_ = Upload<int>({3, 4});
    CUDA_OK(cudaMallocHost(&pinned_, 8));
  }
  void TearDown() override {
    CUDA_OK(cudaDeviceSynchronize());
    CUDA_OK(cudaFree(x_));
    CUDA_OK(cudaFree(y_));
    CUDA_OK(cudaFreeHost(pinned_));
    CUDA_OK(cudaStreamDestroy(a_));
    CUDA_OK(cudaStreamDestroy(b_));
    CUDA_OK(cudaEventDestroy(event_));
  }
  cudaError_t Copy(cudaStream_t stream, int* to, const int* from) {
    return lockstep::RunCopy(stream, to, from);
  }
  cudaStream_t a_ = nullptr;
  cudaStream_t b_ = nullptr;
  cudaEvent_t event_ = nullptr;
  int* x_ = nullptr;
  int* y_ = nullptr;
  int* pinned_ = nullptr;
};
using OrderingDeathTest = OrderingTest;

TEST_F(OrderingDeathTest, MissingEventBetweenCopies) {
  CUDA_OK(cudaMemsetAsync(x_, 0, 8, a_));
  EXPECT_DEATH(
      cudaMemcpyAsync(pinned_, x_, 8, cudaMemcpyDeviceToHost, b_),
      "cudaMemcpyAsync of 8 bytes \\(stream [0-9]+\\) reads memory that cudaMemsetAsync of "
      "8 bytes \\(stream [0-9]+\\) writes, and nothing orders the two");
  CUDA_OK(cudaEventRecord(event_, a_));
  CUDA_OK(cudaStreamWaitEvent(b_, event_));
  CUDA_OK(cudaMemcpyAsync(pinned_, x_, 8, cudaMemcpyDeviceToHost, b_));
}

TEST_F(OrderingDeathTest, MissingEventBetweenKernels) {
  CUDA_OK(Copy(a_, x_, y_));
  EXPECT_DEATH(Copy(b_, pinned_, x_), "kernel .*CopyKernel.* reads memory that kernel");
  EXPECT_DEATH(Copy(b_, y_, pinned_), "writes memory that kernel .*CopyKernel.* reads");
}

TEST_F(OrderingDeathTest, AnEventRecordedTooEarly) {
  CUDA_OK(cudaEventRecord(event_, a_));
  CUDA_OK(cudaMemsetAsync(x_, 0, 8, a_));
  CUDA_OK(cudaStreamWaitEvent(b_, event_));
  EXPECT_DEATH(cudaMemsetAsync(x_, 0, 8, b_), "nothing orders the two");
}

TEST_F(OrderingDeathTest, FreedOnAnotherStream) {
  int* z = nullptr;
  CUDA_OK(cudaMallocAsync(&z, 8, a_));
  CUDA_OK(cudaMemsetAsync(z, 0, 8, a_));
  EXPECT_DEATH(cudaFreeAsync(z, b_), "cudaFreeAsync .*nothing orders the two");
  EXPECT_DEATH(cudaMemsetAsync(z, 0, 8, b_), "nothing orders the two");
  CUDA_OK(cudaFreeAsync(z, a_));
  // The kernel's use is found when the stream reaches it.
  const auto use_freed = [&] {
    if (Copy(a_, z, x_) == cudaSuccess) cudaStreamSynchronize(a_);
  };
  EXPECT_DEATH(use_freed(), "out of bounds(.|\n)*CopyKernel|heap-use-after-free");
}

TEST_F(OrderingTest, OrderedUsesAreFine) {
  // Readers need no order among themselves.
  CUDA_OK(Copy(a_, y_, x_));
  CUDA_OK(Copy(b_, pinned_, x_));
  // The host waits.
  CUDA_OK(cudaStreamSynchronize(a_));
  CUDA_OK(cudaMemsetAsync(y_, 0, 8, b_));
  // An event, polled.
  CUDA_OK(cudaEventRecord(event_, b_));
  while (cudaEventQuery(event_) == cudaErrorNotReady) {
  }
  CUDA_OK(cudaMemsetAsync(y_, 0, 8, a_));
  // Through a third stream.
  cudaStream_t c = nullptr;
  cudaEvent_t other = nullptr;
  CUDA_OK(cudaStreamCreate(&c));
  CUDA_OK(cudaEventCreate(&other));
  CUDA_OK(cudaEventRecord(event_, a_));
  CUDA_OK(cudaStreamWaitEvent(c, event_));
  CUDA_OK(cudaEventRecord(other, c));
  CUDA_OK(cudaStreamWaitEvent(b_, other));
  CUDA_OK(cudaMemsetAsync(y_, 0, 8, b_));
  CUDA_OK(cudaEventRecord(other, b_));
  CUDA_OK(cudaStreamWaitEvent(c, other));
  // The legacy stream and a blocking one need nothing.
  CUDA_OK(cudaMemsetAsync(y_, 0, 8, c));
  CUDA_OK(cudaMemsetAsync(y_, 0, 8, nullptr));
  CUDA_OK(cudaMemsetAsync(y_, 0, 8, c));
  // Distinct parts of one block.
  CUDA_OK(cudaDeviceSynchronize());
  CUDA_OK(cudaMemsetAsync(y_, 0, 4, a_));
  CUDA_OK(cudaMemsetAsync(y_ + 1, 0, 4, b_));
  CUDA_OK(cudaDeviceSynchronize());
  CUDA_OK(cudaStreamDestroy(c));
  CUDA_OK(cudaEventDestroy(other));
  cudaGetLastError();
}

TEST_F(OrderingTest, TheCheckCanBeTurnedOff) {
  SettingsGuard settings;
  settings->ordering = false;
  CUDA_OK(cudaMemsetAsync(x_, 0, 8, a_));
  CUDA_OK(cudaMemsetAsync(x_, 0, 8, b_));
  CUDA_OK(cudaDeviceSynchronize());
}

#if !defined(__SANITIZE_ADDRESS__)

TEST_F(OrderingDeathTest, KernelsUseTheirOwnDevicesMemory) {
  int** pointers = nullptr;
  CUDA_OK(cudaMallocHost(&pointers, sizeof(int*)));
  CUDA_OK(cudaSetDevice(1));
  int* const there = Upload<int>({5});
  CUDA_OK(cudaSetDevice(0));
  *pointers = there;
  const auto store = [&] {
    lockstep::RunStore(pointers, 7);
    return cudaDeviceSynchronize();
  };
  EXPECT_DEATH(store(), "memory of another device, without peer access");
  CUDA_OK(cudaDeviceEnablePeerAccess(1, 0));
  CUDA_OK(store());
  EXPECT_EQ(Download(there, 1)[0], 7);
  CUDA_OK(cudaDeviceDisablePeerAccess(1));
  *pointers = x_ + 64;
  EXPECT_DEATH(store(),
               "StoreKernel(.|\n)*(a kernel uses memory out of bounds|no global memory of this "
               "kernel(.|\n)*248 bytes after device memory)");
  CUDA_OK(cudaFree(there));
  *pointers = there;
  EXPECT_DEATH(store(), "a kernel uses freed memory(.|\n)*freed at");
  CUDA_OK(cudaFreeHost(pointers));
}

// Of 32 threads that store one does so in another device's memory.
TEST_F(OrderingDeathTest, AFaultInAKernelNamesThreadAndPlace) {
  int** targets = nullptr;
  CUDA_OK(cudaMallocHost(&targets, 32 * sizeof(int*)));
  int* const here = NewOnDevice<int>(32);
  CUDA_OK(cudaSetDevice(1));
  int* const there = NewOnDevice<int>(32);
  CUDA_OK(cudaSetDevice(0));
  for (int i = 0; i < 32; ++i) targets[i] = i == 17 ? there + 5 : here + i;
  const auto store = [&] {
    lockstep::RunStores(targets);
    return cudaDeviceSynchronize();
  };
  const char* const place = "(.|\n)*at .*stream_kernels.cu:[0-9]+, PTX line [0-9]+: st.global";
  EXPECT_DEATH(store(), std::string("StoresKernel, block .0,0,0. of .1,1,1., thread .17,0,0. of "
                                    "(.|\n)*memory of another device, without peer access, at "
                                    "0x[0-9a-f]*, at byte 20 of device memory") +
                            place);
  targets[17] = here + 17;
  CUDA_OK(store());
  EXPECT_EQ(Download(here, 32)[17], 117);
  CUDA_OK(cudaFree(here));
  CUDA_OK(cudaFree(there));
  CUDA_OK(cudaFreeHost(targets));
}

#endif

TEST(StickyTest, AFailedKernelFailsEverythingUntilReset) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  setenv("CUDASIM_ON_BUG", "error", 1);
  EXPECT_EXIT(
      {
        int* const x = NewOnDevice<int>(1);
        int host = 0;
        cudaMemset(x, 0, 5);  // A bug: one byte too many.
        const bool sticks =
            cudaGetLastError() == cudaErrorLaunchFailure &&
            cudaGetLastError() == cudaErrorLaunchFailure &&
            cudaMemcpy(&host, x, 4, cudaMemcpyDeviceToHost) == cudaErrorLaunchFailure &&
            cudaDeviceSynchronize() == cudaErrorLaunchFailure;
        const bool reports = cudasim::TakeReports().size() == 1;
        cudaSetDevice(1);
        const bool elsewhere = cudaDeviceSynchronize() == cudaSuccess;
        cudaSetDevice(0);
        cudaDeviceReset();
        cudaGetLastError();
        const bool well = cudaDeviceSynchronize() == cudaSuccess;
        std::exit(sticks && reports && elsewhere && well ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
  unsetenv("CUDASIM_ON_BUG");
}

#if !defined(__SANITIZE_ADDRESS__)

TEST(StickyTest, AfterAFaultInAKernelAndAResetTheDeviceIsWell) {
  lockstep::ScopedSettings settings;
  settings->abort_on_bug = false;
  CUDA_OK(cudaSetDevice(1));
  int* const there = NewOnDevice<int>(1);
  CUDA_OK(cudaSetDevice(0));
  for (const bool faults : {false, true, false}) {
    int** targets = nullptr;
    CUDA_OK(cudaMallocHost(&targets, 32 * sizeof(int*)));
    int* const here = NewOnDevice<int>(32);
    for (int i = 0; i < 32; ++i) targets[i] = here + i;
    if (faults) targets[9] = there;
    CUDA_OK(lockstep::RunStores(targets));
    EXPECT_EQ(cudaDeviceSynchronize(), faults ? cudaErrorLaunchFailure : cudaSuccess);
    EXPECT_EQ(cudasim::TakeReports().size(), faults ? 1 : 0);
    if (!faults) {
      EXPECT_EQ(Download(here, 32)[9], 109);
    }
    CUDA_OK(cudaDeviceReset());
    cudaGetLastError();
  }
  CUDA_OK(cudaFree(there));
}

#endif

using NvtxDeathTest = testing::Test;

TEST_F(NvtxDeathTest, RangesMustBalance) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EQ(nvtxRangePushA("outer"), 0);
  EXPECT_EQ(nvtxRangePushA("inner"), 1);
  EXPECT_EQ(nvtxRangePop(), 1);
  EXPECT_EQ(nvtxRangePop(), 0);
  EXPECT_DEATH(nvtxRangePop(), "nvtxRangePop without a range");
  EXPECT_DEATH(std::thread([] { nvtxRangePushA("forgotten"); }).join(),
               "\"forgotten\" is still open");
  const nvtxRangeId_t id = nvtxRangeStartA("across threads");
  std::thread([id] { nvtxRangeEnd(id); }).join();
  EXPECT_DEATH(nvtxRangeEnd(id), "not open");
}

}  // namespace
}  // namespace cudasim_test
