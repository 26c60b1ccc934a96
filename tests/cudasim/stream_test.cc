// Streams, events, host functions, sticky errors, and delayed streams.
#include <gmock/gmock-matchers.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "tests/cudasim/support.h"

namespace cudasim_test {
namespace {

using std::chrono::milliseconds;

// Makes a stream wait until the test opens the gate.
class Gate {
 public:
  void Close(cudaStream_t stream) {
    EXPECT_EQ(cudaLaunchHostFunc(
                  stream, [](void* gate) { static_cast<Gate*>(gate)->future_.wait(); }, this),
              cudaSuccess);
  }
  void Open() { promise_.set_value(); }

 private:
  std::promise<void> promise_;
  std::shared_future<void> future_ = promise_.get_future().share();
};

struct Flag {
  static void Set(void* flag) { static_cast<Flag*>(flag)->value = true; }
  std::atomic<bool> value{false};
};

class StreamTest : public testing::Test {
 protected:
  void SetUp() override {
    CUDA_OK(cudaStreamCreate(&a_));
    CUDA_OK(cudaStreamCreate(&b_));
    CUDA_OK(cudaStreamCreateWithFlags(&free_, cudaStreamNonBlocking));
    CUDA_OK(cudaEventCreate(&event_));
  }
  void TearDown() override {
    for (const cudaStream_t stream : {a_, b_, free_}) CUDA_OK(cudaStreamDestroy(stream));
    CUDA_OK(cudaEventDestroy(event_));
    CUDA_OK(cudaDeviceSynchronize());
  }
  cudaStream_t a_ = nullptr;
  cudaStream_t b_ = nullptr;
  cudaStream_t free_ = nullptr;
  cudaEvent_t event_ = nullptr;
};

TEST_F(StreamTest, RunInOrderAndOnTheirOwn) {
  Gate gate;
  Flag after_gate;
  Flag other;
  gate.Close(a_);
  CUDA_OK(cudaLaunchHostFunc(a_, Flag::Set, &after_gate));
  CUDA_OK(cudaLaunchHostFunc(b_, Flag::Set, &other));
  CUDA_OK(cudaStreamSynchronize(b_));
  EXPECT_TRUE(other.value);
  EXPECT_FALSE(after_gate.value);
  EXPECT_EQ(cudaStreamQuery(a_), cudaErrorNotReady);
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotReady);
  gate.Open();
  CUDA_OK(cudaStreamSynchronize(a_));
  EXPECT_TRUE(after_gate.value);
  CUDA_OK(cudaStreamQuery(a_));
}

TEST_F(StreamTest, LegacyStreamWaitsForBlockingStreamsAndTheyForIt) {
  Gate gate;
  Flag legacy;
  Flag later;
  Flag independent;
  gate.Close(a_);
  CUDA_OK(cudaLaunchHostFunc(nullptr, Flag::Set, &legacy));
  CUDA_OK(cudaLaunchHostFunc(b_, Flag::Set, &later));
  CUDA_OK(cudaLaunchHostFunc(free_, Flag::Set, &independent));
  CUDA_OK(cudaStreamSynchronize(free_));
  EXPECT_TRUE(independent.value);
  std::this_thread::sleep_for(milliseconds(10));
  EXPECT_FALSE(legacy.value);
  EXPECT_FALSE(later.value);
  gate.Open();
  CUDA_OK(cudaStreamSynchronize(b_));
  EXPECT_TRUE(legacy.value);
  EXPECT_TRUE(later.value);
}

TEST_F(StreamTest, PerThreadStreamsAreDistinct) {
  Gate gate;
  Flag mine;
  gate.Close(cudaStreamPerThread);
  CUDA_OK(cudaLaunchHostFunc(cudaStreamPerThread, Flag::Set, &mine));
  std::thread([] {
    Flag other;
    CUDA_OK(cudaLaunchHostFunc(cudaStreamPerThread, Flag::Set, &other));
    CUDA_OK(cudaStreamSynchronize(cudaStreamPerThread));
    EXPECT_TRUE(other.value);
  }).join();
  EXPECT_FALSE(mine.value);
  gate.Open();
  CUDA_OK(cudaStreamSynchronize(cudaStreamPerThread));
  EXPECT_TRUE(mine.value);
}

TEST_F(StreamTest, EventsOrderStreams) {
  Gate gate;
  Flag before;
  Flag after;
  gate.Close(a_);
  CUDA_OK(cudaLaunchHostFunc(a_, Flag::Set, &before));
  CUDA_OK(cudaEventRecord(event_, a_));
  CUDA_OK(cudaStreamWaitEvent(b_, event_));
  CUDA_OK(cudaLaunchHostFunc(b_, Flag::Set, &after));
  std::this_thread::sleep_for(milliseconds(10));
  EXPECT_FALSE(after.value);
  EXPECT_EQ(cudaEventQuery(event_), cudaErrorNotReady);
  gate.Open();
  CUDA_OK(cudaEventSynchronize(event_));
  EXPECT_TRUE(before.value);
  CUDA_OK(cudaEventQuery(event_));
  CUDA_OK(cudaStreamSynchronize(b_));
  EXPECT_TRUE(after.value);
  cudaGetLastError();
}

TEST_F(StreamTest, WaitsForTheLatestRecordingAtTheTimeOfTheCall) {
  Gate first;
  Gate second;
  Flag done;
  first.Close(a_);
  CUDA_OK(cudaEventRecord(event_, a_));
  CUDA_OK(cudaStreamWaitEvent(b_, event_));
  CUDA_OK(cudaLaunchHostFunc(b_, Flag::Set, &done));
  // Recording again must not change what b waits for.
  second.Close(a_);
  CUDA_OK(cudaEventRecord(event_, a_));
  first.Open();
  CUDA_OK(cudaStreamSynchronize(b_));
  EXPECT_TRUE(done.value);
  second.Open();
  CUDA_OK(cudaStreamSynchronize(a_));
}

TEST_F(StreamTest, MeasuresTime) {
  cudaEvent_t end = nullptr;
  CUDA_OK(cudaEventCreate(&end));
  float ms = -1;
  EXPECT_EQ(cudaEventElapsedTime(&ms, event_, end), cudaErrorInvalidResourceHandle);
  CUDA_OK(cudaEventRecord(event_, a_));
  CUDA_OK(cudaLaunchHostFunc(
      a_, [](void*) { std::this_thread::sleep_for(milliseconds(20)); }, nullptr));
  CUDA_OK(cudaEventRecord(end, a_));
  EXPECT_EQ(cudaEventElapsedTime(&ms, event_, end), cudaErrorNotReady);
  CUDA_OK(cudaEventSynchronize(end));
  CUDA_OK(cudaEventElapsedTime(&ms, event_, end));
  EXPECT_GE(ms, 20.0f);
  EXPECT_LT(ms, 20000.0f);
  CUDA_OK(cudaEventDestroy(end));
  CUDA_OK(cudaEventCreateWithFlags(&end, cudaEventDisableTiming));
  CUDA_OK(cudaEventRecord(end, a_));
  CUDA_OK(cudaEventSynchronize(end));
  EXPECT_EQ(cudaEventElapsedTime(&ms, event_, end), cudaErrorInvalidResourceHandle);
  CUDA_OK(cudaEventDestroy(end));
  cudaGetLastError();
}

TEST_F(StreamTest, RefusesBadHandles) {
  cudaStream_t stream = nullptr;
  CUDA_OK(cudaStreamCreate(&stream));
  CUDA_OK(cudaStreamDestroy(stream));
  EXPECT_EQ(cudaStreamDestroy(stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaStreamCreateWithFlags(&stream, 8), cudaErrorInvalidValue);
  cudaEvent_t event = nullptr;
  CUDA_OK(cudaEventCreate(&event));
  CUDA_OK(cudaEventDestroy(event));
  EXPECT_EQ(cudaEventDestroy(event), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventRecord(event, a_), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaStreamWaitEvent(a_, event), cudaErrorInvalidResourceHandle);
  // An event belongs to the device that was current when it was created.
  CUDA_OK(cudaSetDevice(1));
  CUDA_OK(cudaStreamCreate(&stream));
  EXPECT_EQ(cudaEventRecord(event_, stream), cudaErrorInvalidResourceHandle);
  CUDA_OK(cudaEventRecord(event_, a_));
  CUDA_OK(cudaStreamWaitEvent(stream, event_));  // Across devices.
  int device = -1;
  CUDA_OK(cudaStreamGetDevice(stream, &device));
  EXPECT_EQ(device, 1);
  CUDA_OK(cudaStreamDestroy(stream));
  CUDA_OK(cudaSetDevice(0));
  EXPECT_EQ(cudaSetDevice(7), cudaErrorInvalidDevice);
  cudaGetLastError();
}

TEST_F(StreamTest, FinishesDestroyedStreams) {
  cudaStream_t stream = nullptr;
  Flag done;
  CUDA_OK(cudaStreamCreate(&stream));
  CUDA_OK(cudaLaunchHostFunc(
      stream, [](void*) { std::this_thread::sleep_for(milliseconds(10)); }, nullptr));
  CUDA_OK(cudaLaunchHostFunc(stream, Flag::Set, &done));
  CUDA_OK(cudaStreamDestroy(stream));
  CUDA_OK(cudaDeviceSynchronize());
  EXPECT_TRUE(done.value);
}

TEST_F(StreamTest, PropertiesOfStreams) {
  int least = 1;
  int greatest = 1;
  CUDA_OK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  EXPECT_LT(greatest, least);
  cudaStream_t stream = nullptr;
  CUDA_OK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest - 10));
  int priority = 1;
  CUDA_OK(cudaStreamGetPriority(stream, &priority));
  EXPECT_EQ(priority, greatest);
  unsigned flags = 0;
  CUDA_OK(cudaStreamGetFlags(stream, &flags));
  EXPECT_EQ(flags, unsigned{cudaStreamNonBlocking});
  CUDA_OK(cudaStreamDestroy(stream));
}

TEST_F(StreamTest, MemsetReturnsBeforeItIsDone) {
  Gate gate;
  int* const x = Upload<int>({7});
  gate.Close(nullptr);
  CUDA_OK(cudaMemset(x, 0, 4));
  int* pinned = nullptr;
  CUDA_OK(cudaMallocHost(&pinned, 4));
  *pinned = 7;
  CUDA_OK(cudaMemcpyAsync(pinned, x, 4, cudaMemcpyDeviceToHost, nullptr));
  EXPECT_EQ(*static_cast<volatile int*>(pinned), 7);
  gate.Open();
  CUDA_OK(cudaStreamSynchronize(nullptr));
  EXPECT_EQ(*pinned, 0);
  CUDA_OK(cudaFreeHost(pinned));
  CUDA_OK(cudaFree(x));
}

TEST_F(StreamTest, FreeWaits) {
  Flag done;
  int* const x = Upload<int>({7});
  CUDA_OK(cudaLaunchHostFunc(
      free_, [](void*) { std::this_thread::sleep_for(milliseconds(10)); }, nullptr));
  CUDA_OK(cudaLaunchHostFunc(free_, Flag::Set, &done));
  CUDA_OK(cudaFree(x));
  EXPECT_TRUE(done.value);
}

// With CUDASIM_DELAY, what the program does not wait for has not happened yet.
TEST_F(StreamTest, DelayedStreamsRunWhenSomethingWaits) {
  SettingsGuard settings;
  settings->delay_ms = 60000;
  int* const x = Upload<int>({7});
  int* pinned = nullptr;
  CUDA_OK(cudaMallocHost(&pinned, 8));
  pinned[0] = 1;
  CUDA_OK(cudaMemcpyAsync(pinned, x, 4, cudaMemcpyDeviceToHost, a_));
  CUDA_OK(cudaEventRecord(event_, a_));
  CUDA_OK(cudaMemcpyAsync(pinned + 1, x, 4, cudaMemcpyDeviceToHost, a_));
  Flag later;
  CUDA_OK(cudaLaunchHostFunc(a_, Flag::Set, &later));
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_EQ(*static_cast<volatile int*>(pinned), 1);
  // The work before an event runs, the work after it does not.
  CUDA_OK(cudaEventSynchronize(event_));
  EXPECT_EQ(pinned[0], 7);
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_FALSE(later.value);
  // Polling makes progress.
  while (cudaStreamQuery(a_) == cudaErrorNotReady) {
  }
  EXPECT_TRUE(later.value);
  CUDA_OK(cudaFreeHost(pinned));
  CUDA_OK(cudaFree(x));
  cudaGetLastError();
}

TEST_F(StreamTest, DelayedWorkBeginsWhenItsTimeIsUp) {
  SettingsGuard settings;
  settings->delay_ms = 30;
  Flag done;
  CUDA_OK(cudaLaunchHostFunc(a_, Flag::Set, &done));
  EXPECT_FALSE(done.value);
  for (int i = 0; i < 1000 && !done.value; ++i) std::this_thread::sleep_for(milliseconds(10));
  EXPECT_TRUE(done.value);
}

// The bug: pageable memory is read before the copy is known to be done.
TEST_F(StreamTest, DelayShowsAForgottenWait) {
  SettingsGuard settings;
  int* const x = Upload<int>({7});
  for (const bool delayed : {false, true}) {
    settings->delay_ms = delayed ? 60000 : 0;
    int host = 1;
    CUDA_OK(cudaMemcpyAsync(&host, x, 4, cudaMemcpyDeviceToHost, a_));
    EXPECT_EQ(static_cast<volatile int&>(host), delayed ? 1 : 7);
    CUDA_OK(cudaStreamSynchronize(a_));
    EXPECT_EQ(host, 7);
  }
  CUDA_OK(cudaFree(x));
}

TEST(DeviceTest, HasProperties) {
  int count = 0;
  CUDA_OK(cudaGetDeviceCount(&count));
  EXPECT_EQ(count, 2);
  cudaDeviceProp prop;
  CUDA_OK(cudaGetDeviceProperties(&prop, 1));
  EXPECT_STREQ(prop.name, "Simulated GPU");
  EXPECT_EQ(prop.major, 9);
  EXPECT_EQ(prop.totalGlobalMem, cudasim::runtime::GetSettings().memory);
  int value = 0;
  CUDA_OK(cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
  EXPECT_EQ(static_cast<size_t>(value), prop.sharedMemPerBlockOptin);
  EXPECT_EQ(cudaDeviceGetAttribute(&value, static_cast<cudaDeviceAttr>(127), 0),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetDeviceProperties(&prop, 2), cudaErrorInvalidDevice);
  char id[16];
  CUDA_OK(cudaDeviceGetPCIBusId(id, sizeof(id), 1));
  CUDA_OK(cudaDeviceGetByPCIBusId(&value, id));
  EXPECT_EQ(value, 1);
  cudaGetLastError();
}

TEST(DeviceTest, PeersExchangeMemory) {
  int can = 0;
  CUDA_OK(cudaDeviceCanAccessPeer(&can, 0, 1));
  EXPECT_EQ(can, 1);
  int* const x = Upload<int>({1, 2});
  CUDA_OK(cudaSetDevice(1));
  int* const y = Upload<int>({3, 4});
  CUDA_OK(cudaMemcpyPeerAsync(y, 1, x, 0, 8, nullptr));
  EXPECT_EQ(Download(y, 2), (std::vector<int>{1, 2}));
  EXPECT_EQ(cudaMemcpyPeerAsync(y, 2, x, 0, 8, nullptr), cudaErrorInvalidDevice);
  CUDA_OK(cudaDeviceEnablePeerAccess(0, 0));
  EXPECT_EQ(cudaDeviceEnablePeerAccess(0, 0), cudaErrorPeerAccessAlreadyEnabled);
  CUDA_OK(cudaDeviceDisablePeerAccess(0));
  EXPECT_EQ(cudaDeviceDisablePeerAccess(0), cudaErrorPeerAccessNotEnabled);
  EXPECT_EQ(cudaDeviceEnablePeerAccess(1, 0), cudaErrorInvalidDevice);
  CUDA_OK(cudaFree(y));
  CUDA_OK(cudaSetDevice(0));
  CUDA_OK(cudaFree(x));
  cudaGetLastError();
}

TEST(ErrorTest, HasNamesAndTexts) {
  EXPECT_STREQ(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation");
  EXPECT_STREQ(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory");
  EXPECT_STREQ(cudaGetErrorString(static_cast<cudaError_t>(1001)), "unrecognized error code");
}

TEST(ErrorTest, IsEachThreadsOwn) {
  EXPECT_EQ(cudaSetDevice(9), cudaErrorInvalidDevice);
  std::thread([] { EXPECT_EQ(cudaGetLastError(), cudaSuccess); }).join();
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

}  // namespace
}  // namespace cudasim_test
