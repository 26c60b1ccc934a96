#include "core/host_read.h"

#include <gtest/gtest.h>

#include <utility>

#include "core/step_state.h"
#include "tests/core/test_ops.h"

namespace lockstep {
namespace {

TEST(HostReadTest, HasTheValuesOfTheMomentItWasMade) {
  const Tensor x = Tensor::FromVector<float>({1, 2, 3}, {3});
  HostRead read(x);
  x.data<float>()[1] = 7;
  EXPECT_TRUE(read.Ready());
  EXPECT_EQ(read.Get().ToVector<float>(), (std::vector<float>{1, 2, 3}));
  EXPECT_EQ(read.Get().shape(), Shape({3}));
  HostRead moved = std::move(read);
  EXPECT_EQ(moved.Get().dtype(), DType::kF32);
  moved = HostRead(Tensor::FromVector<int32_t>({5}, {}));
  EXPECT_EQ(*moved.Get().data<int32_t>(), 5);
}

TEST(HostReadTest, OfNothingAndOfWhatHasNoValues) {
  HostRead none;
  EXPECT_FALSE(none.defined());
  EXPECT_TRUE(none.Ready());
  EXPECT_THROW(none.Get(), ArgumentError);
  EXPECT_THROW(HostRead(Tensor::Empty({2}, DType::kF32, kMeta)), ArgumentError);
  const Tensor columns = Tensor::Empty({2, 3}, DType::kF32).Transpose(0, 1);
  EXPECT_THROW(HostRead{columns}, ArgumentError);
  HostRead empty(Tensor::Empty({0, 3}, DType::kF32));
  EXPECT_EQ(empty.Get().shape(), Shape({0, 3}));
}

TEST(HostReadTest, ReadsStepValues) {
  StepState state(kCpu, 11);
  state.Begin(4, 0.5);
  HostRead read = state.ReadLater();
  state.Begin(5, 0.25);
  EXPECT_EQ(ToStepValues(read).step, 4);
  EXPECT_EQ(ToStepValues(read).lr, 0.5f);
  EXPECT_EQ(state.Read().step, 5);
}

}  // namespace
}  // namespace lockstep
