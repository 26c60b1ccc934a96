#include "core/storage.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cstring>

#include "core/allocator.h"
#include "core/tensor.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

using test::MessageOf;
using testing::HasSubstr;

int64_t LiveBytes() { return GetAllocator(kCpu).stats().live_bytes; }

TEST(StorageTest, AllocatesAlignedMemoryAndGivesItBack) {
  const int64_t live = LiveBytes();
  {
    const Storage s = Storage::Allocate(1000, kCpu);
    EXPECT_EQ(s.bytes(), 1000);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(s.data()) % 64, 0u);
    std::memset(s.data(), 1, 1000);
    EXPECT_EQ(LiveBytes(), live + 1000);
    const Storage copy = s;
    EXPECT_TRUE(copy.SameBlock(s));
    EXPECT_FALSE(s.unique());
  }
  EXPECT_EQ(LiveBytes(), live);
}

TEST(StorageTest, NothingNeedsNoMemory) {
  EXPECT_EQ(Storage::Allocate(0, kCpu).data(), nullptr);
  EXPECT_FALSE(Storage().defined());
  EXPECT_EQ(Storage().bytes(), 0);
  EXPECT_FALSE(Storage().unique());
  EXPECT_FALSE(Storage().released());
  const Storage meta = Storage::Allocate(int64_t{1} << 50, kMeta);
  EXPECT_EQ(meta.data(), nullptr);
  EXPECT_EQ(meta.bytes(), int64_t{1} << 50);
  EXPECT_THROW(Storage::Allocate(-1, kCpu), ArgumentError);
}

TEST(StorageTest, SlicesShareMemoryButNotVersions) {
  const Storage whole = Storage::Allocate(100, kCpu);
  const Storage slice = whole.Slice(40, 50);
  const Storage inner = slice.Slice(10, 40);
  EXPECT_TRUE(slice.is_slice());
  EXPECT_FALSE(whole.is_slice());
  EXPECT_EQ(slice.data(), static_cast<char*>(whole.data()) + 40);
  EXPECT_EQ(inner.data(), static_cast<char*>(whole.data()) + 50);
  slice.BumpVersion();
  EXPECT_EQ(slice.version(), 1u);
  EXPECT_EQ(whole.version(), 0u);
  EXPECT_EQ(inner.version(), 0u);
  EXPECT_EQ(whole.Slice(100, 0).bytes(), 0);
  EXPECT_THAT(MessageOf([&] { whole.Slice(51, 50); }),
              HasSubstr("slice of 50 bytes at 51 is outside a storage of 100 bytes"));
  EXPECT_THROW(whole.Slice(-1, 5), ArgumentError);
  EXPECT_THROW(whole.Slice(INT64_MAX, INT64_MAX), ArgumentError);
  EXPECT_THROW(whole.Slice(0, -1), ArgumentError);
}

TEST(StorageTest, SlicesKeepTheWholeAlive) {
  const int64_t live = LiveBytes();
  Storage slice;
  {
    const Storage whole = Storage::Allocate(100, kCpu);
    EXPECT_TRUE(whole.unique());
    slice = whole.Slice(10, 20);
    EXPECT_FALSE(whole.unique()) << "a write in place would be seen through the slice";
    EXPECT_FALSE(slice.unique());
  }
  EXPECT_EQ(LiveBytes(), live + 100);
  std::memset(slice.data(), 1, 20);
  slice = Storage();
  EXPECT_EQ(LiveBytes(), live);
}

TEST(StorageTest, WrapsMemoryOfOthersAndKeepsTheOwner) {
  auto owner = std::make_shared<std::vector<char>>(64, 'x');
  const std::weak_ptr<void> alive = owner;
  Storage s = Storage::Wrap(owner->data(), 64, kCpu, owner);
  EXPECT_EQ(s.data(), owner->data());
  owner.reset();
  EXPECT_FALSE(alive.expired());
  EXPECT_FALSE(s.unique()) << "somebody else may read it";
  EXPECT_THAT(MessageOf([&] { s.Release(); }),
              HasSubstr("only memory that the storage allocated itself"));
  s = Storage();
  EXPECT_TRUE(alive.expired());
}

TEST(StorageTest, ReleasedMemoryComesBackWhileTensorsKeepPointingAtIt) {
  const int64_t live = LiveBytes();
  const Tensor x = Tensor::Full({4}, 3, DType::kF32);
  const Tensor view = x.Slice(0, 2, 4);
  const Storage slice = x.storage().Slice(0, 8);
  x.storage().Release();
  EXPECT_EQ(LiveBytes(), live);
  EXPECT_TRUE(x.storage().released());
  EXPECT_TRUE(slice.released());
  for (const auto& use : std::vector<std::function<void()>>{
           [&] { x.raw_data(); }, [&] { view.Fill(0); }, [&] { slice.data(); }}) {
    EXPECT_THAT(
        MessageOf<Error>(use),
        HasSubstr("(16 bytes on cpu) was released; call Materialize() on its storage first"));
  }
  EXPECT_EQ(x.shape(), Shape({4}));
  x.storage().Release();  // again: nothing happens
  EXPECT_THAT(MessageOf([&] { slice.Materialize(); }), HasSubstr("call Materialize() on that one"));
  x.storage().Materialize();
  EXPECT_EQ(LiveBytes(), live + 16);
  EXPECT_FALSE(slice.released());
  x.Fill(5);
  void* data = x.raw_data();
  x.storage().Materialize();  // there is memory: nothing happens
  EXPECT_EQ(x.raw_data(), data);
  EXPECT_THAT(view.ToVector<float>(), testing::ElementsAre(5, 5));
}

TEST(StorageTest, SlicesCannotBeReleased) {
  EXPECT_THROW(Storage::Allocate(8, kCpu).Slice(0, 4).Release(), ArgumentError);
  EXPECT_THROW(Storage().Release(), ArgumentError);
}

TEST(StorageTest, RecordUseOfTheOwnStreamIsFree) {
  const Storage s = Storage::Allocate(8, kCpu);
  s.RecordUse(CurrentStream(kCpu));
  s.Slice(0, 4).RecordUse(CurrentStream(kCpu));
  Storage().RecordUse(CurrentStream(kCpu));
}

// ---- Streams and events: on the host all work is done when a call returns ----

TEST(StreamTest, GuardsNest) {
  const Stream first{kCpu, std::make_shared<int>()}, second{kCpu, std::make_shared<int>()};
  EXPECT_EQ(CurrentStream(kCpu), (Stream{kCpu, nullptr}));
  {
    StreamGuard outer(first);
    EXPECT_EQ(CurrentStream(kCpu), first);
    {
      StreamGuard inner(second);
      EXPECT_EQ(CurrentStream(kCpu), second);
      EXPECT_EQ(CurrentStream(kMeta), (Stream{kMeta, nullptr}));
    }
    EXPECT_EQ(CurrentStream(kCpu), first);
  }
  EXPECT_EQ(CurrentStream(kCpu), (Stream{kCpu, nullptr}));
}

// Copies share ownership of the queue, and memory keeps the streams that use it.
TEST(StreamTest, LivesAsLongAsSomethingHoldsIt) {
  auto queue = std::make_shared<int>();
  const std::weak_ptr<int> alive = queue;
  {
    Storage storage = Storage::Allocate(8, kCpu);
    {
      const Stream stream{kCpu, std::move(queue)};
      const StreamGuard guard(stream);
      storage.RecordUse(stream);
    }
    EXPECT_FALSE(alive.expired());
  }
  EXPECT_TRUE(alive.expired());
}

TEST(StreamTest, EventsOfTheHostAreAlwaysDone) {
  Event event(kCpu);
  event.Record(CurrentStream(kCpu));
  event.Wait(CurrentStream(kCpu));
  EXPECT_TRUE(event.Query());
  event.Synchronize();
  Synchronize(CurrentStream(kCpu));
}

TEST(DeviceTest, Names) {
  EXPECT_EQ(ToString(kCpu), "cpu");
  EXPECT_EQ(ToString(kMeta), "meta");
  // As this build's backend names its devices.
  EXPECT_THAT(ToString({DeviceType::kCuda, 3}), testing::AnyOf("cuda:3", "sim:3"));
  EXPECT_EQ(Name(DeviceType::kCuda), "CUDA");
}

}  // namespace
}  // namespace lockstep
