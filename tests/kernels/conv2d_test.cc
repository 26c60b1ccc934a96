// Laws of conv2d and the pools that their OpCases do not state.
#include "kernels/conv2d/conv2d.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/autograd/engine.h"
#include "core/philox.h"
#include "kernels/max_pool2d/max_pool2d.h"

namespace lockstep {
namespace {

using testing::ElementsAre;

Tensor Noise(const Shape& shape, uint64_t stream) {
  std::vector<float> values(static_cast<size_t>(shape.numel()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = 2 * ToUniform(Philox(3).At(stream, i)) - 1;
  }
  return Tensor::FromVector(values, shape);
}

// An image's result has the same bits whatever images are beside it, and whether images run side by
// side or share the threads.
TEST(Conv2d, AnImageDoesNotDependOnItsNeighbours) {
  const Tensor x = Noise({11, 3, 17, 19}, 1), w = Noise({5, 3, 3, 3}, 2), b = Noise({5}, 3);
  const Conv2dOptions options = {.stride = 1, .padding = 1};
  const Tensor all = ops::Conv2d(x, w, b, options);
  for (const int64_t n : {0, 7, 10}) {
    const Tensor one = ops::Conv2d(x.Slice(0, n, n + 1), w, b, options);
    EXPECT_EQ(one.ToVector<float>(), all.Slice(0, n, n + 1).ToVector<float>()) << n;
  }
}

// What is not needed is not kept: with a frozen weight the images are freed, so writing to them is
// not an error.
TEST(Conv2d, KeepsOnlyWhatBackwardNeeds) {
  Tensor x = Noise({2, 3, 5, 5}, 1), w = Noise({4, 3, 3, 3}, 2), b = Noise({4}, 3);
  b.SetRequiresGrad();
  const Tensor y = ops::Conv2d(x, w, b);
  x.Fill(7);
  w.Fill(7);
  Backward(y, Tensor::Full(y.shape(), 1, DType::kF32));
  EXPECT_THAT(b.grad().ToVector<float>(), testing::Each(2 * 3 * 3));
}

TEST(MaxPool2d, ANanWins) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = HUGE_VALF;
  const Tensor x = Tensor::FromVector<float>({1, nan, 2, 9, -inf, -inf, -inf, -inf, inf, 3, nan, 4},
                                             {1, 3, 2, 2});
  const std::vector<float> y = ops::MaxPool2d(x, {}).ToVector<float>();
  EXPECT_TRUE(std::isnan(y[0]));
  EXPECT_EQ(y[1], -inf);
  EXPECT_TRUE(std::isnan(y[2]));
}

TEST(MaxPool2d, TheFirstOfEqualMaximaGetsTheGradient) {
  Tensor x = Tensor::FromVector<float>({1, 5, 5, 5}, {1, 1, 2, 2});
  x.SetRequiresGrad();
  Backward(ops::MaxPool2d(x, {}), Tensor::Full({1, 1, 1, 1}, 3, DType::kF32));
  EXPECT_THAT(x.grad().ToVector<float>(), ElementsAre(0, 3, 0, 0));
}

}  // namespace
}  // namespace lockstep
