#include "core/dispatcher.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>

namespace lockstep {
namespace {

constinit Slot<void(int x, int* y)> double_slot{"double_forward"};

void DoubleCpu(Stream, int x, int* y) { *y = 2 * x; }
LS_REGISTER(double_slot, DeviceType::kCpu, DoubleCpu);

TEST(DispatcherTest, CallsWhatWasRegistered) {
  int y = 0;
  double_slot(CurrentStream(kCpu), 4, &y);
  EXPECT_EQ(y, 8);
}

TEST(DispatcherTest, AnEmptySlotNamesItselfAndTheDevice) {
  int y = 0;
  try {
    double_slot(Stream{{DeviceType::kCuda, 0}, nullptr}, 4, &y);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "double_forward: no CUDA kernel in this build");
  }
}

void SeesItsStream(Stream stream, int, int* y) { *y = CurrentStream(stream.device) == stream; }
constinit Slot<void(int x, int* y)> stream_slot{"stream_forward"};
LS_REGISTER(stream_slot, DeviceType::kCuda, SeesItsStream);

TEST(DispatcherTest, TheStreamIsCurrentInTheFunction) {
  const Device device{DeviceType::kCuda, 0};
  const Stream other{device, std::make_shared<int>()};
  int y = 0;
  stream_slot(other, 0, &y);
  EXPECT_TRUE(y);
  EXPECT_EQ(CurrentStream(device), (Stream{device, nullptr})) << "and no longer after it";
}

TEST(DispatcherTest, OnMetaThereIsNothingToDo) {
  int y = 5;
  double_slot(CurrentStream(kMeta), 4, &y);
  EXPECT_EQ(y, 5);
}

struct Calls : SlotObserver {
  void OnEnter(const char* name) override { all += std::string(name) + "("; }
  void OnLeave() noexcept override { all += ")"; }
  std::string all;
};

void CallsAndThrows(Stream stream, int x, int* y) {
  double_slot(stream, x, y);
  throw Error("after it");
}
constinit Slot<void(int x, int* y)> throwing_slot{"throwing_forward"};
LS_REGISTER(throwing_slot, DeviceType::kCpu, CallsAndThrows);

TEST(DispatcherTest, AnObserverIsToldOfItsThreadsCalls) {
  Calls calls;
  int y = 0;
  {
    const ObserveSlots observed(&calls);
    double_slot(CurrentStream(kCpu), 4, &y);
    EXPECT_THROW(throwing_slot(CurrentStream(kCpu), 4, &y), Error);
    double_slot(CurrentStream(kMeta), 4, &y);  // calls nothing
    std::thread([&] { double_slot(CurrentStream(kCpu), 4, &y); }).join();
    const ObserveSlots nobody(nullptr);
    double_slot(CurrentStream(kCpu), 4, &y);
  }
  double_slot(CurrentStream(kCpu), 4, &y);
  EXPECT_EQ(calls.all, "double_forward()throwing_forward(double_forward())");
}

}  // namespace
}  // namespace lockstep
