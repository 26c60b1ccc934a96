#include "kernels/reduce/reduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

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

// One dimension needs no braces; empty ones are all; a keepdim without a dimension is no dimension.
TEST(ReduceTest, TakesDimensionsInEveryForm) {
  const Tensor x = Tensor::FromVector<float>({1, 2, 3, 4}, {2, 2});
  const std::vector<int> both = {0, 1};
  EXPECT_EQ(ops::Sum(x, 1).ToVector<float>(), (std::vector<float>{3, 7}));
  EXPECT_EQ(ops::Sum(x, int64_t{0}).ToVector<float>(), (std::vector<float>{4, 6}));
  EXPECT_EQ(ops::Sum(x, {-1}, true).shape(), Shape({2, 1}));
  EXPECT_EQ(ops::Var(x, 0).ToVector<float>(), (std::vector<float>{2, 2}));
  EXPECT_EQ(ops::Norm(x, 1, 0).ToVector<float>(), (std::vector<float>{4, 6}));
  for (const Tensor& total :
       {ops::Sum(x), ops::Sum(x, {}), ops::Sum(x, {0, 1}), ops::Sum(x, both)}) {
    EXPECT_EQ(total.Item(), 10);
  }
  static_assert(!std::is_convertible_v<bool, ops::Dims>);
}

}  // namespace
}  // namespace lockstep
