#include "kernels/softmax/softmax.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace lockstep {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(SoftmaxTest, MinusInfinityMasks) {
  const Tensor x = Tensor::FromVector<float>({0, -kInf, 0, -kInf}, {1, 4});
  EXPECT_EQ(ops::Softmax(x).ToVector<float>(), (std::vector<float>{0.5, 0, 0.5, 0}));
  const std::vector<float> logarithms = ops::LogSoftmax(x).ToVector<float>();
  EXPECT_NEAR(logarithms[0], std::log(0.5), 1e-7);
  EXPECT_EQ(logarithms[1], -kInf);
}

TEST(SoftmaxTest, WithoutAnAnswerIsNan) {
  // A fully masked row, one with a NaN, one with an infinity.
  const Tensor x = Tensor::FromVector<float>({-kInf, -kInf, NAN, 1, kInf, 0}, {3, 2});
  for (const Tensor& y : {ops::Softmax(x), ops::LogSoftmax(x)}) {
    const std::vector<float> v = y.ToVector<float>();
    for (int i : {0, 1, 2, 3, 4}) EXPECT_TRUE(std::isnan(v[i])) << i << ": " << v[i];
  }
}

}  // namespace
}  // namespace lockstep
