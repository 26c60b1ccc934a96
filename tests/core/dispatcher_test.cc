#include "core/dispatcher.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

constinit Slot<void(int x, int* y)> double_slot{"double_forward"};

void DoubleCpu(Stream, int x, int* y) { *y = 2 * x; }
LS_REGISTER(double_slot, DeviceType::kCpu, DoubleCpu);

TEST(DispatcherTest, CallsWhatWasRegistered) {
  int y = 0;
  double_slot(CurrentStream(kCpu), 4, &y);
  EXPECT_EQ(y, 8);
  EXPECT_TRUE(double_slot.Has(DeviceType::kCpu));
  EXPECT_FALSE(double_slot.Has(DeviceType::kCuda));
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

TEST(DispatcherTest, OnMetaThereIsNothingToDo) {
  int y = 5;
  double_slot(CurrentStream(kMeta), 4, &y);
  EXPECT_EQ(y, 5);
}

}  // namespace
}  // namespace lockstep
