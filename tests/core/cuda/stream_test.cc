#include <gmock/gmock-matchers.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "core/cuda/handles.h"
#include "core/cuda/pinned.h"
#include "core/host_read.h"
#include "core/step_state.h"
#include "core/tensor.h"
#include "tests/core/cuda/support.h"

namespace lockstep::cuda {
namespace {

using CudaStreamTest = GpuTest;

TEST_F(CudaStreamTest, EventsOrderStreams) {
  StreamBackend& backend = GetStreamBackend(DeviceType::kCuda);
  const Stream a = backend.CreateStream(kGpu), b = backend.CreateStream(kGpu);
  {
    Blocked blocked(a);
    Event first(kGpu), second(kGpu);
    first.Record(a);
    EXPECT_FALSE(first.Query());
    second.Record(b);
    second.Synchronize();  // b does not wait for a
    first.Wait(b);
    second.Record(b);
    EXPECT_FALSE(second.Query());
    blocked.Open();
    second.Synchronize();
    EXPECT_TRUE(first.Query());
  }
}

// Besides its kernels and losses, nothing that a training step does may make the host wait for the
// device. If it did, this test would hang.
TEST_F(CudaStreamTest, UploadsFillsAndReadsDoNotWait) {
  StreamBackend& backend = GetStreamBackend(DeviceType::kCuda);
  const Stream stream = backend.CreateStream(kGpu);
  {
    const StreamGuard guard(stream);
    StepState state(kGpu, 5);
    Blocked blocked(stream);
    state.Begin(3, 0.5);
    state.SetFirstSample(7);
    HostRead values = state.ReadLater();
    std::vector<int32_t> ids = {1, 2, 3, 4};
    const Tensor batch = Tensor::FromVector(ids, {4}, kGpu);
    ids = {9, 9, 9, 9};  // the copy has its own
    HostRead read(batch);
    const Tensor ones = Tensor::Full({3}, 1, DType::kF32, kGpu);
    EXPECT_FALSE(values.Ready());
    EXPECT_FALSE(read.Ready());
    state.Begin(4, 0.25);  // comes after the read
    blocked.Open();
    EXPECT_EQ(ToStepValues(values).step, 3);
    EXPECT_EQ(ToStepValues(values).first_sample, 7);
    EXPECT_EQ(read.Get().ToVector<int32_t>(), (std::vector<int32_t>{1, 2, 3, 4}));
    EXPECT_EQ(ones.ToVector<float>(), (std::vector<float>{1, 1, 1}));
    EXPECT_EQ(state.Read().step, 4);
  }
}

TEST_F(CudaStreamTest, AReadThatIsDroppedStillHasItsMemory) {
  const Stream stream = CurrentStream(kGpu);
  const Tensor x = Tensor::Full({1000}, 3, DType::kF32, kGpu);
  {
    Blocked blocked(stream);
    std::thread opener([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      blocked.Open();
    });
    { HostRead dropped(x); }  // waits: the device still writes to its memory
    opener.join();
  }
  const std::shared_ptr<void> next = AllocatePinned(4000, kGpu);
  EXPECT_EQ(static_cast<float*>(next.get())[999], 3) << "the memory of the read, after its copy";
}

// The memory belongs to the default stream; the copy out of it does not.
TEST_F(CudaStreamTest, AReadKeepsTheMemoryThatItReads) {
  const OwnedStream other(kGpu);
  Tensor x = Tensor::Full({1000}, 3, DType::kF32, kGpu);
  Event filled(kGpu);
  filled.Record(CurrentStream(kGpu));
  filled.Wait(other);
  Blocked blocked(other);
  HostRead read;
  {
    const StreamGuard guard(other);
    read = HostRead(x);
  }
  x = Tensor();
  const Tensor next = Tensor::Full({1000}, 7, DType::kF32, kGpu);
  blocked.Open();
  EXPECT_EQ(read.Get().ToVector<float>(), std::vector<float>(1000, 3));
  EXPECT_EQ(next.ToVector<float>(), std::vector<float>(1000, 7));
}

TEST_F(CudaStreamTest, PageLockedMemoryIsUsedAgain) {
  void* first = AllocatePinned(3000, kGpu).get();
  EXPECT_EQ(AllocatePinned(4096, kGpu).get(), first);
  EXPECT_NE(AllocatePinned(4097, kGpu).get(), first);
  EXPECT_EQ(AllocatePinned(0, kGpu), nullptr);
}

// One that waits for a busy GPU's copies holds up no other thread's, be they to another GPU.
TEST_F(CudaStreamTest, AThreadThatWaitsForItsCopiesHoldsUpNoOther) {
  if (DeviceCount() < 2) GTEST_SKIP() << "this needs two GPUs";
  StreamBackend& backend = GetStreamBackend(DeviceType::kCuda);
  const Stream busy = backend.CreateStream(kGpu);
  constexpr int64_t kBytes = 80 << 20;  // more than may be pending
  const Tensor large = Tensor::Empty({kBytes}, DType::kU8, kGpu);
  Synchronize(CurrentStream(kGpu));  // which has the memory
  const std::vector<uint8_t> host(kBytes, 7);
  Blocked blocked(busy);
  std::atomic<bool> copied{false};
  std::thread waits([&] {
    CopyFromHost(large.raw_data(), host.data(), kBytes, busy);
    copied = true;
  });
  // However far the thread has come.
  for (int i = 0; i < 300; ++i) {
    EXPECT_EQ(Tensor::FromVector<int32_t>({1, 2}, {2}, kSecondGpu).ToVector<int32_t>(),
              (std::vector<int32_t>{1, 2}));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_FALSE(copied);
  blocked.Open();
  waits.join();
  Synchronize(busy);
}

// Longer than the blocks that copies go through.
TEST_F(CudaStreamTest, LargeCopiesArriveWhole) {
  const int64_t n = 5'000'003;
  std::vector<int32_t> values(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) values[static_cast<size_t>(i)] = static_cast<int32_t>(i * 7);
  const Tensor there = Tensor::FromVector(values, {n}, kGpu);
  EXPECT_TRUE(there.ToVector<int32_t>() == values);
}

}  // namespace
}  // namespace lockstep::cuda
