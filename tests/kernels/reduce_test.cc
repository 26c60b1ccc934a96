#include "kernels/reduce/reduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/autograd/engine.h"

namespace lockstep {
namespace {

TEST(ReduceTest, LongSumsDoNotDrift) {
  constexpr int64_t kN = 10'000'000;
  // Adding one after the other in f32 would be 8% off. In blocks of 64 terms a lane, then trees,
  // the roundings are at most 64 + 24 units of 6e-8, and equal terms round alike.
  constexpr double kTolerance = 88 * 6e-8;
  const Tensor x = Tensor::Full({kN}, 0.1, DType::kF32);
  const double want = static_cast<double>(0.1f) * kN;
  EXPECT_NEAR(ops::Sum(x).Item(), want, kTolerance * want);
  EXPECT_NEAR(ops::Sum(x.View({kN / 10, 10}), {0}).ToVector<float>()[7], want / 10,
              kTolerance * want / 10);
  EXPECT_NEAR(ops::Mean(x).Item(), 0.1f, kTolerance * 0.1);
}

TEST(ReduceTest, FirstOfEqualMaximaGetsTheGradient) {
  Tensor x = Tensor::FromVector<float>({1, 3, 3, -2, -2, -5}, {2, 3}).SetRequiresGrad();
  const Tensor y = ops::Max(x, {1});
  EXPECT_EQ(y.ToVector<float>(), (std::vector<float>{3, -2}));
  Backward(y, Tensor::FromVector<float>({10, 20}, {2}));
  EXPECT_EQ(x.grad().ToVector<float>(), (std::vector<float>{0, 10, 0, 20, 0, 0}));

  x.ZeroGrad();
  Backward(ops::Max(x), Tensor::Full({}, 7, DType::kF32));
  EXPECT_EQ(x.grad().ToVector<float>(), (std::vector<float>{0, 7, 0, 0, 0, 0}));
}

TEST(ReduceTest, MaxOfInfinitiesAndNans) {
  const float inf = std::numeric_limits<float>::infinity();
  const Tensor x = Tensor::FromVector<float>({-inf, -inf, 1, NAN, NAN, 5, -inf, inf}, {4, 2});
  const std::vector<float> rows = ops::Max(x, {1}).ToVector<float>();
  EXPECT_EQ(rows[0], -inf);
  EXPECT_TRUE(std::isnan(rows[1]));
  EXPECT_TRUE(std::isnan(rows[2]));
  EXPECT_EQ(rows[3], inf);
  for (float v : ops::Max(x, {0}).ToVector<float>()) EXPECT_TRUE(std::isnan(v));
  EXPECT_TRUE(std::isnan(ops::Sum(x).Item()));
}

}  // namespace
}  // namespace lockstep
