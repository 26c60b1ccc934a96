// Device, pinned and stream-ordered memory, and their detectors.
#include <gmock/gmock-matchers.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <thread>

#include "tests/cudasim/support.h"

namespace cudasim_test {
namespace {

using testing::ContainsRegex;

TEST(MemoryTest, AllocatesAlignedMemoryThatReadsAsNan) {
  for (const size_t count : {1, 3, 1000, 100000}) {
    float* const x = NewOnDevice<float>(count);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(x) % 256, 0u);
    for (const float value : Download(x, count)) ASSERT_TRUE(std::isnan(value));
    CUDA_OK(cudaFree(x));
  }
}

TEST(MemoryTest, CopiesAndSets) {
  const std::vector<int> values = {1, 2, 3, 4, 5};
  int* const x = Upload(values);
  int* const y = NewOnDevice<int>(5);
  CUDA_OK(cudaMemcpy(y, x, 5 * sizeof(int), cudaMemcpyDeviceToDevice));
  EXPECT_EQ(Download(y, 5), values);
  CUDA_OK(cudaMemset(y + 1, 0, 2 * sizeof(int)));
  EXPECT_EQ(Download(y, 5), (std::vector<int>{1, 0, 0, 4, 5}));
  CUDA_OK(cudaMemcpy(y, x, 5 * sizeof(int), cudaMemcpyDefault));
  EXPECT_EQ(Download(y, 5), values);
  CUDA_OK(cudaFree(x));
  CUDA_OK(cudaFree(y));
}

TEST(MemoryTest, CopiesRows) {
  const std::vector<char> rows = {'a', 'b', '.', 'c', 'd', '.'};
  char* x = nullptr;
  size_t pitch = 0;
  CUDA_OK(cudaMallocPitch(reinterpret_cast<void**>(&x), &pitch, 2, 2));
  EXPECT_EQ(pitch, 512u);
  CUDA_OK(cudaMemcpy2D(x, pitch, rows.data(), 3, 2, 2, cudaMemcpyHostToDevice));
  std::vector<char> back(4);
  CUDA_OK(cudaMemcpy2D(back.data(), 2, x, pitch, 2, 2, cudaMemcpyDeviceToHost));
  EXPECT_EQ(back, (std::vector<char>{'a', 'b', 'c', 'd'}));
  CUDA_OK(cudaMemset2D(x, pitch, 'z', 1, 2));
  CUDA_OK(cudaMemcpy2D(back.data(), 2, x, pitch, 2, 2, cudaMemcpyDeviceToHost));
  EXPECT_EQ(back, (std::vector<char>{'z', 'b', 'z', 'd'}));
  EXPECT_EQ(cudaMemcpy2D(back.data(), 1, x, pitch, 2, 2, cudaMemcpyDeviceToHost),
            cudaErrorInvalidPitchValue);
  CUDA_OK(cudaFree(x));
}

TEST(MemoryTest, CopiesBoxes) {
  // 2 planes of 3 rows of 4 bytes: '0' + plane * 12 + row * 4 + column.
  std::vector<char> host(24);
  for (int j = 0; j < 24; ++j) host[j] = static_cast<char>('0' + j);
  cudaPitchedPtr x{};
  CUDA_OK(cudaMalloc3D(&x, {4, 3, 2}));
  EXPECT_EQ(x.pitch, 512u);
  EXPECT_EQ(x.ysize, 3u);
  cudaMemcpy3DParms up{};
  up.srcPtr = {host.data(), 4, 4, 3};
  up.dstPtr = x;
  up.extent = {4, 3, 2};
  up.kind = cudaMemcpyHostToDevice;
  CUDA_OK(cudaMemcpy3D(&up));
  // Of each plane, rows 1 and 2 from column 1 on.
  CUDA_OK(cudaMemset3D({static_cast<char*>(x.ptr) + 2 * x.pitch, x.pitch, 4, 3}, 'z', {2, 1, 2}));
  std::vector<char> back(12);
  cudaMemcpy3DParms down{};
  down.srcPtr = x;
  down.srcPos = {1, 1, 0};
  down.dstPtr = {back.data(), 3, 3, 2};
  down.extent = {3, 2, 2};
  down.kind = cudaMemcpyDeviceToHost;
  CUDA_OK(cudaMemcpy3DAsync(&down, nullptr));
  CUDA_OK(cudaDeviceSynchronize());
  EXPECT_EQ(std::string(back.begin(), back.end()),
            std::string({'0' + 5, '0' + 6, '0' + 7, 'z', '0' + 10, '0' + 11,  //
                         '0' + 17, '0' + 18, '0' + 19, 'z', '0' + 22, '0' + 23}));
  down.dstPtr.pitch = 2;
  EXPECT_EQ(cudaMemcpy3D(&down), cudaErrorInvalidPitchValue);
  CUDA_OK(cudaFree(x.ptr));
}

TEST(MemoryTest, TakesHintsAboutManagedMemory) {
  int* managed = nullptr;
  CUDA_OK(cudaMallocManaged(&managed, 8));
  CUDA_OK(cudaStreamAttachMemAsync(nullptr, managed));
  CUDA_OK(cudaMemAdvise(managed, 8, cudaMemAdviseSetReadMostly, {cudaMemLocationTypeDevice, 0}));
  int* const device = NewOnDevice<int>(2);
  EXPECT_EQ(cudaStreamAttachMemAsync(nullptr, device), cudaErrorInvalidValue);
  cudaGetLastError();
  CUDA_OK(cudaFree(managed));
  CUDA_OK(cudaFree(device));
}

TEST(MemoryTest, RefusesWrongCopies) {
  int* const x = NewOnDevice<int>(4);
  int host[4] = {};
  EXPECT_EQ(cudaMemcpy(x, host, 16, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(host, x, 16, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(host, x, 16, static_cast<cudaMemcpyKind>(7)),
            cudaErrorInvalidMemcpyDirection);
  EXPECT_EQ(cudaMemcpy(nullptr, x, 16, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(nullptr, x, 0, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(cudaMemset(host, 0, 16), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  CUDA_OK(cudaFree(x));
}

TEST(MemoryTest, RunsOutOfMemoryAndRecovers) {
  SettingsGuard settings;
  settings->memory = 1 << 20;
  size_t free = 0;
  size_t total = 0;
  CUDA_OK(cudaMemGetInfo(&free, &total));
  EXPECT_EQ(total, size_t{1} << 20);
  ASSERT_EQ(free, total);
  char* const half = NewOnDevice<char>(1 << 19);
  CUDA_OK(cudaMemGetInfo(&free, &total));
  EXPECT_EQ(free, size_t{1} << 19);
  void* more = nullptr;
  EXPECT_EQ(cudaMalloc(&more, (1 << 19) + 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaMalloc(&more, SIZE_MAX), cudaErrorMemoryAllocation);
  EXPECT_EQ(more, nullptr);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  // Another device has its own.
  CUDA_OK(cudaSetDevice(1));
  CUDA_OK(cudaMalloc(&more, 1 << 20));
  CUDA_OK(cudaFree(more));
  CUDA_OK(cudaSetDevice(0));
  CUDA_OK(cudaFree(half));
  CUDA_OK(cudaMalloc(&more, 1 << 20));
  CUDA_OK(cudaFree(more));
}

TEST(MemoryTest, FreesNothing) {
  CUDA_OK(cudaFree(nullptr));
  CUDA_OK(cudaFreeHost(nullptr));
  void* x = &x;
  CUDA_OK(cudaMalloc(&x, 0));
  EXPECT_EQ(x, nullptr);
  int on_stack = 0;
  EXPECT_EQ(cudaFree(&on_stack), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
}

TEST(MemoryTest, TellsWhatAPointerIs) {
  cudaPointerAttributes attributes;
  int on_stack = 0;
  CUDA_OK(cudaPointerGetAttributes(&attributes, &on_stack));
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);
  CUDA_OK(cudaSetDevice(1));
  float* const x = NewOnDevice<float>(8);
  CUDA_OK(cudaSetDevice(0));
  CUDA_OK(cudaPointerGetAttributes(&attributes, x + 2));
  EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
  EXPECT_EQ(attributes.device, 1);
  EXPECT_EQ(attributes.devicePointer, x + 2);
  EXPECT_EQ(attributes.hostPointer, nullptr);
  CUDA_OK(cudaFree(x));
  CUDA_OK(cudaPointerGetAttributes(&attributes, x));
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);
}

TEST(MemoryTest, PinsHostMemory) {
  float* pinned = nullptr;
  CUDA_OK(cudaMallocHost(&pinned, 1000));
  EXPECT_TRUE(std::isnan(pinned[0]));
  pinned[0] = 1;
  cudaPointerAttributes attributes;
  CUDA_OK(cudaPointerGetAttributes(&attributes, pinned));
  EXPECT_EQ(attributes.type, cudaMemoryTypeHost);
  void* device = nullptr;
  CUDA_OK(cudaHostGetDevicePointer(&device, pinned, 0));
  EXPECT_EQ(device, pinned);
  unsigned flags = 9;
  CUDA_OK(cudaHostGetFlags(&flags, pinned));
  EXPECT_EQ(flags, 0u);
  CUDA_OK(cudaFreeHost(pinned));

  std::vector<char> own(10000);
  CUDA_OK(cudaHostRegister(own.data(), own.size(), cudaHostRegisterDefault));
  EXPECT_EQ(cudaHostRegister(own.data() + 5, 1, 0), cudaErrorHostMemoryAlreadyRegistered);
  CUDA_OK(cudaPointerGetAttributes(&attributes, own.data() + 5));
  EXPECT_EQ(attributes.type, cudaMemoryTypeHost);
  CUDA_OK(cudaHostUnregister(own.data()));
  EXPECT_EQ(cudaHostUnregister(own.data()), cudaErrorHostMemoryNotRegistered);
  cudaGetLastError();
}

TEST(MemoryTest, ManagedMemoryIsForBoth) {
  int* x = nullptr;
  CUDA_OK(cudaMallocManaged(&x, sizeof(int)));
  CUDA_OK(cudaMemset(x, 0, sizeof(int)));
  CUDA_OK(cudaDeviceSynchronize());
  EXPECT_EQ(*x, 0);
  CUDA_OK(cudaFree(x));
}

TEST(PoolTest, AllocatesInStreamOrder) {
  cudaStream_t stream = nullptr;
  CUDA_OK(cudaStreamCreate(&stream));
  float* x = nullptr;
  CUDA_OK(cudaMallocAsync(&x, 1024, stream));
  CUDA_OK(cudaMemsetAsync(x, 0, 1024, stream));
  cudaMemPool_t pool = nullptr;
  CUDA_OK(cudaDeviceGetDefaultMemPool(&pool, 0));
  uint64_t threshold = UINT64_MAX;
  CUDA_OK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
  uint64_t used = 0;
  CUDA_OK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used));
  EXPECT_EQ(used, 1024u);
  CUDA_OK(cudaFreeAsync(x, stream));
  CUDA_OK(cudaStreamSynchronize(stream));
  CUDA_OK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used));
  EXPECT_EQ(used, 0u);
  CUDA_OK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &used));
  EXPECT_GE(used, 1024u);
  CUDA_OK(cudaStreamDestroy(stream));
}

TEST(PoolTest, ReusesWhatIsFreedOnTheStream) {
  SettingsGuard settings;
  settings->memory = 1 << 20;
  settings->delay_ms = 10000;
  void* x = nullptr;
  for (int i = 0; i < 4; ++i) {
    CUDA_OK(cudaMallocAsync(&x, 1 << 20, nullptr));
    CUDA_OK(cudaFreeAsync(x, nullptr));
  }
  CUDA_OK(cudaDeviceSynchronize());
}

TEST(PoolTest, LimitsOwnPools) {
  cudaMemPoolProps props = {};
  props.allocType = cudaMemAllocationTypePinned;
  props.location = {cudaMemLocationTypeDevice, 0};
  props.maxSize = 4096;
  cudaMemPool_t pool = nullptr;
  CUDA_OK(cudaMemPoolCreate(&pool, &props));
  void* x = nullptr;
  void* y = nullptr;
  CUDA_OK(cudaMallocFromPoolAsync(&x, 4096, pool, nullptr));
  EXPECT_EQ(cudaMallocFromPoolAsync(&y, 1, pool, nullptr), cudaErrorMemoryAllocation);
  CUDA_OK(cudaFreeAsync(x, nullptr));
  CUDA_OK(cudaMemPoolDestroy(pool));
  EXPECT_EQ(cudaMemPoolDestroy(pool), cudaErrorInvalidValue);
  cudaGetLastError();
}

// Detectors. Death tests run in a process of their own.

class MemoryDeathTest : public testing::Test {
 protected:
  MemoryDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

#if !defined(__SANITIZE_ADDRESS__)

TEST_F(MemoryDeathTest, HostAccessToDeviceMemory) {
  float* const x = NewOnDevice<float>(100);
  EXPECT_DEATH(*static_cast<volatile float*>(x + 7) = 1,
               "host access to device memory at 0x[0-9a-f]*, at byte 28 of device memory "
               "0x[0-9a-f]* of 400 bytes on device 0, allocated at");
  float sum = 0;
  EXPECT_DEATH(sum += *static_cast<volatile float*>(x), "host access to device memory");
  CUDA_OK(cudaFree(x));
}

TEST_F(MemoryDeathTest, HostAccessWhileTheDeviceWorks) {
  float* const x = NewOnDevice<float>(100);
  cudaStream_t stream = nullptr;
  CUDA_OK(cudaStreamCreate(&stream));
  EXPECT_DEATH(
      {
        cudaLaunchHostFunc(
            stream, [](void* memory) { *static_cast<volatile float*>(memory) = 1; }, x);
        cudaStreamSynchronize(stream);
      },
      "host access to device memory");
  CUDA_OK(cudaStreamDestroy(stream));
  CUDA_OK(cudaFree(x));
}

TEST_F(MemoryDeathTest, UseAfterFreeAndOutOfBounds) {
  float* const x = NewOnDevice<float>(64);
  EXPECT_DEATH(*static_cast<volatile float*>(x + 64) = 1,
               "out of bounds at 0x[0-9a-f]*, 0 bytes after device memory");
  CUDA_OK(cudaFree(x));
  EXPECT_DEATH(*static_cast<volatile float*>(x) = 1, "the host uses freed memory");
  float* pinned = nullptr;
  CUDA_OK(cudaMallocHost(&pinned, 4096));
  EXPECT_DEATH(*static_cast<volatile float*>(pinned + 1024) = 1, "out of bounds");
  CUDA_OK(cudaFreeHost(pinned));
  EXPECT_DEATH(*static_cast<volatile float*>(pinned) = 1, "the host uses freed memory");
}

TEST_F(MemoryDeathTest, SmallOverrunIsFoundWhenFreeing) {
  char* pinned = nullptr;
  CUDA_OK(cudaMallocHost(&pinned, 100));
  EXPECT_DEATH(
      {
        *static_cast<volatile char*>(pinned + 103) = 1;
        cudaFreeHost(pinned);
      },
      "found when freeing: bytes 3 to 3 after it were overwritten: pinned host memory");
  // Even if the bytes written are those after another block; one alone could be the same by chance.
  char* other = nullptr;
  CUDA_OK(cudaMallocHost(&other, 100));
  EXPECT_DEATH(
      {
        for (int i = 100; i < 112; ++i) {
          *static_cast<volatile char*>(pinned + i) = *static_cast<volatile char*>(other + i);
        }
        cudaFreeHost(pinned);
      },
      "found when freeing: bytes [0-9]+ to [0-9]+ after it were overwritten");
  CUDA_OK(cudaFreeHost(other));
  CUDA_OK(cudaFreeHost(pinned));
}

#if !defined(__SANITIZE_THREAD__)  // ThreadSanitizer has its own handler.

TEST_F(MemoryDeathTest, OtherFaultsAreNotOurs) {
  EXPECT_EXIT(*static_cast<volatile int*>(nullptr) = 1, testing::KilledBySignal(SIGSEGV), "^$");
}

#endif

#endif

TEST_F(MemoryDeathTest, FreedTwice) {
  float* const x = NewOnDevice<float>(100);
  float* const y = NewOnDevice<float>(100);
  CUDA_OK(cudaFree(x));
  EXPECT_DEATH(cudaFree(x), "freed twice: device memory.*\n.*(.*\n)*.*freed at");
  EXPECT_DEATH(cudaFree(y + 1), "freed at byte 4 of a block");
  CUDA_OK(cudaFreeAsync(y, nullptr));
  EXPECT_DEATH(cudaFreeAsync(y, nullptr), "freed twice");
  CUDA_OK(cudaDeviceSynchronize());
}

TEST_F(MemoryDeathTest, CopiesBeyondABlock) {
  float* const x = NewOnDevice<float>(100);
  std::vector<float> host(101);
  EXPECT_DEATH(cudaMemcpy(x, host.data(), 404, cudaMemcpyHostToDevice),
               "cudaMemcpy of 404 bytes writes beyond device memory");
  EXPECT_DEATH(cudaMemcpy(host.data(), x + 1, 400, cudaMemcpyDeviceToHost), "reads beyond");
  EXPECT_DEATH(cudaMemset(x, 0, 401), "cudaMemset of 401 bytes writes beyond");
  CUDA_OK(cudaFree(x));
}

TEST_F(MemoryDeathTest, Leaks) {
  setenv("CUDASIM_LEAKS", "error", 1);
  EXPECT_DEATH(
      {
        NewOnDevice<float>(100);
        std::exit(0);
      },
      "leak.*1 blocks of device memory, 400 bytes, were never freed");
  EXPECT_EXIT(
      {
        cudaFree(NewOnDevice<float>(100));
        std::exit(0);
      },
      testing::ExitedWithCode(0), "");
  EXPECT_EXIT(
      {
        float* const x = NewOnDevice<float>(100);
        cudaLaunchHostFunc(
            nullptr, [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(100)); },
            nullptr);
        cudaFreeAsync(x, nullptr);  // waits in the stream when the process exits
        std::exit(0);
      },
      testing::ExitedWithCode(0), "");
  unsetenv("CUDASIM_LEAKS");
}

}  // namespace
}  // namespace cudasim_test
