// What the makers of tensors promise beyond the values in their OpCase.
#include "kernels/creation/creation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/op_case/op_case.h"

namespace lockstep {
namespace {

std::vector<double> Values(const Tensor& x) { return ToRef(x).data; }

double Mean(const std::vector<double>& x) {
  return std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
}
double Covariance(const std::vector<double>& x, const std::vector<double>& y) {
  const double mean_x = Mean(x), mean_y = Mean(y);
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += (x[i] - mean_x) * (y[i] - mean_y);
  return sum / static_cast<double>(x.size());
}
double Variance(const std::vector<double>& x) { return Covariance(x, x); }
double Correlation(const std::vector<double>& x, const std::vector<double>& y) {
  return Covariance(x, y) / std::sqrt(Variance(x) * Variance(y));
}

constexpr int64_t kN = 10000;  // chance deviates by 5 / sqrt(kN) = 0.05 at most

TEST(MakersTest, BothEndsOfALinspaceAreExact) {
  for (const int64_t n : {2, 3, 7, 10, 1000}) {
    const std::vector<double> x = Values(ops::Linspace(0.1, 0.7, n, DType::kF64));
    EXPECT_EQ(x.front(), 0.1);
    EXPECT_EQ(x.back(), 0.7);
    EXPECT_TRUE(std::is_sorted(x.begin(), x.end()));
  }
}

TEST(MakersTest, UniformNumbersAreBelowOneInEveryDType) {
  const std::vector<double> exact = Values(ops::Rand({kN}, 3, DType::kF64));
  EXPECT_NEAR(Mean(exact), 0.5, 0.05 * std::sqrt(1.0 / 12));
  EXPECT_NEAR(Variance(exact), 1.0 / 12, 0.005);
  for (const auto& [dtype, digits] :
       {std::pair(DType::kF32, 24), {DType::kF16, 11}, {DType::kBF16, 8}}) {
    const std::vector<double> x = Values(ops::Rand({kN}, 3, dtype));
    for (int64_t i = 0; i < kN; ++i) {
      // The same number, with digits cut off.
      ASSERT_EQ(x[i], std::floor(std::ldexp(exact[i], digits)) * std::ldexp(1, -digits)) << dtype;
    }
    EXPECT_LT(*std::max_element(x.begin(), x.end()), 1) << dtype;
  }
}

TEST(MakersTest, NormalNumbersHaveMeanZeroAndVarianceOne) {
  const std::vector<double> x = Values(ops::Randn({kN}, 3));
  EXPECT_NEAR(Mean(x), 0, 0.05);
  EXPECT_NEAR(Variance(x), 1, 0.07);
  const auto within_one = std::count_if(x.begin(), x.end(), [](double v) { return v * v < 1; });
  EXPECT_NEAR(static_cast<double>(within_one) / kN, 0.6827, 0.025);
  // The two elements of a block, too.
  std::vector<double> even, odd;
  for (int64_t i = 0; i < kN; ++i) (i % 2 == 0 ? even : odd).push_back(x[i]);
  EXPECT_NEAR(Correlation(even, odd), 0, 0.07);
}

TEST(MakersTest, IntegersAreUniformInTheirRange) {
  std::vector<int64_t> counts(7);
  for (const int64_t v : ops::RandInt(-3, 4, {kN}, 3).ToVector<int64_t>()) ++counts.at(v + 3);
  for (const int64_t count : counts) EXPECT_NEAR(static_cast<double>(count), kN / 7.0, 180);
  // Of the widest range both halves.
  const std::vector<int64_t> wide = ops::RandInt(INT64_MIN, INT64_MAX, {kN}, 3).ToVector<int64_t>();
  const auto negative = std::count_if(wide.begin(), wide.end(), [](int64_t v) { return v < 0; });
  EXPECT_NEAR(static_cast<double>(negative) / kN, 0.5, 0.025);
  EXPECT_EQ(ops::RandInt(5, 6, {3}, 1, DType::kU8).ToVector<uint8_t>(), std::vector<uint8_t>(3, 5));
}

TEST(MakersTest, SeedsAndFunctionsAreIndependentAndShapesAreNot) {
  const std::vector<double> x = Values(ops::Randn({kN}, 3)), other = Values(ops::Randn({kN}, 4));
  EXPECT_NEAR(Correlation(x, other), 0, 0.05);
  EXPECT_NEAR(Correlation(x, Values(ops::Rand({kN}, 3))), 0, 0.05);
  EXPECT_NEAR(Correlation(Values(ops::RandInt(0, 1000, {kN}, 3)), Values(ops::Rand({kN}, 3))), 0,
              0.05);
  EXPECT_EQ(Values(ops::Randn({10, kN / 10}, 3)), x);
  const std::vector<double> less = Values(ops::Randn({101}, 3));
  EXPECT_TRUE(std::equal(less.begin(), less.end(), x.begin()));
}

template <class... Args>
concept IsRange = requires(Args... args) {
  ops::Arange(args...);
};

TEST(MakersTest, RangesHaveTheDTypeOfTheirNumbers) {
  EXPECT_EQ(ops::Arange(3).dtype(), DType::kI64);
  EXPECT_EQ(ops::Arange(2, 5).ToVector<int64_t>(), std::vector<int64_t>({2, 3, 4}));
  EXPECT_EQ(ops::Arange(int64_t{2}, 9, 3).ToVector<int64_t>(), std::vector<int64_t>({2, 5, 8}));
  EXPECT_EQ(ops::Arange(5, 0, -2, DType::kF32).ToVector<float>(), std::vector<float>({5, 3, 1}));
  EXPECT_EQ(ops::Arange(0, 1, 0.25).ToVector<float>(), std::vector<float>({0, 0.25, 0.5, 0.75}));
  EXPECT_EQ(ops::Arange(0.0, 3.5).ToVector<float>(), std::vector<float>({0, 1, 2, 3}));
  // Four elements, or three?
  static_assert(IsRange<int> && IsRange<double, double> && !IsRange<double> && !IsRange<float>);
}

// Seeds must mean tomorrow what they mean today.
TEST(MakersTest, TheBitsStay) {
  EXPECT_EQ(ops::RandInt(0, 1000, {6}, 42).ToVector<int64_t>(),
            std::vector<int64_t>({12, 132, 663, 458, 262, 613}));
  EXPECT_EQ(ops::Rand({3}, 42).ToVector<float>(),
            std::vector<float>({0x1p-24f * 933295, 0x1p-24f * 3766470, 0x1p-24f * 3477561}));
}

}  // namespace
}  // namespace lockstep
