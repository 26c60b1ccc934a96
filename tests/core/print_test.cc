// ToString(tensor): the layouts are NumPy's, with 4 digits.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <sstream>

#include "core/tensor.h"

namespace lockstep {
namespace {

std::string Text(const std::vector<double>& values, const Shape& shape, DType dtype = DType::kF32) {
  return ToString(Tensor::FromVector(values, shape).To(dtype));
}
std::string Text(const std::vector<double>& values) {
  return Text(values, {std::ssize(values)}, DType::kF64);
}
std::string Counting(const Shape& shape) {
  std::vector<int64_t> values(static_cast<size_t>(shape.numel()));
  std::iota(values.begin(), values.end(), 0);
  return ToString(Tensor::FromVector(values, shape));
}

TEST(PrintTest, PointsStandBelowEachOther) {
  EXPECT_EQ(Text({1, 2.5, -3.25, 10}, {2, 2}),
            "[[ 1.  ,  2.5 ],\n"
            " [-3.25, 10.  ]] f32[2, 2] on cpu");
  EXPECT_EQ(Text({0.1, 0, 3}, {3}, DType::kF32), "[0.1, 0. , 3. ] f32[3] on cpu");
  EXPECT_EQ(Text({1, 2}, {2}, DType::kBF16), "[1., 2.] bf16[2] on cpu");
  EXPECT_EQ(Text({0, 0}), "[0., 0.] f64[2] on cpu");
}

TEST(PrintTest, FourDigitsAreShown) {
  EXPECT_EQ(Text({0.69314718}, {}), "0.6931 f32[] on cpu");
  EXPECT_EQ(Text({1.0 / 3, 123.456789}), "[  0.3333, 123.4568] f64[2] on cpu");
  EXPECT_EQ(Text({0.99999, 1}), "[1., 1.] f64[2] on cpu");
}

TEST(PrintTest, NumbersOfVeryDifferentSizeHaveExponents) {
  EXPECT_EQ(Text({1e-5, 1}), "[1.e-05, 1.e+00] f64[2] on cpu");
  EXPECT_EQ(Text({-1.5e-5, 12345.678}), "[-1.5000e-05,  1.2346e+04] f64[2] on cpu");
  EXPECT_EQ(Text({1e8, 2e8}), "[1.e+08, 2.e+08] f64[2] on cpu");
  EXPECT_EQ(Text({0, 1e-5}), "[0.e+00, 1.e-05] f64[2] on cpu") << "zero has no size";
  EXPECT_EQ(Text({1, 1000}), "[   1., 1000.] f64[2] on cpu");
  EXPECT_EQ(Text({1, 1001}), "[1.000e+00, 1.001e+03] f64[2] on cpu");
}

TEST(PrintTest, WhatIsNotFiniteHasItsName) {
  EXPECT_EQ(Text({NAN, -NAN, INFINITY, -INFINITY, 1.5}),
            "[ nan,  nan,  inf, -inf,  1.5] f64[5] on cpu");
  EXPECT_EQ(Text({NAN, 1e-9}), "[   nan, 1.e-09] f64[2] on cpu");
}

TEST(PrintTest, IntegersAndBooleans) {
  EXPECT_EQ(Text({1, -20, 300, 4}, {2, 2}, DType::kI32),
            "[[  1, -20],\n"
            " [300,   4]] i32[2, 2] on cpu");
  EXPECT_EQ(Text({1, 0}, {2}, DType::kBool), "[ true, false] bool[2] on cpu");
  EXPECT_EQ(Text({255}, {1}, DType::kU8), "[255] u8[1] on cpu");
  EXPECT_EQ(ToString(Tensor::FromVector<int64_t>({INT64_MAX, INT64_MIN}, {2})),
            "[ 9223372036854775807, -9223372036854775808] i64[2] on cpu");
}

TEST(PrintTest, MatricesHaveAnEmptyLineBetweenThem) {
  EXPECT_EQ(Counting({2, 2, 2}),
            "[[[0, 1],\n"
            "  [2, 3]],\n"
            "\n"
            " [[4, 5],\n"
            "  [6, 7]]] i64[2, 2, 2] on cpu");
}

TEST(PrintTest, OfLargeTensorsTheEndsAreShown) {
  EXPECT_EQ(Counting({1001}), "[   0,    1,    2, ...,  998,  999, 1000] i64[1001] on cpu");
  EXPECT_EQ(Counting({501, 2}),
            "[[   0,    1],\n"
            " [   2,    3],\n"
            " [   4,    5],\n"
            " ...,\n"
            " [ 996,  997],\n"
            " [ 998,  999],\n"
            " [1000, 1001]] i64[501, 2] on cpu");
  EXPECT_EQ(Counting({2, 501}),
            "[[   0,    1,    2, ...,  498,  499,  500],\n"
            " [ 501,  502,  503, ...,  999, 1000, 1001]] i64[2, 501] on cpu");
  EXPECT_THAT(Counting({1000}), testing::Not(testing::HasSubstr("...")));
}

TEST(PrintTest, LongLinesAreBroken) {
  std::istringstream lines(Counting({2, 100}));
  std::vector<std::string> all;
  for (std::string line; std::getline(lines, line);) all.push_back(line);
  ASSERT_GT(all.size(), 2u);
  EXPECT_TRUE(all[0].starts_with("[[  0,   1,")) << all[0];
  EXPECT_TRUE(all[1].starts_with("   ")) << all[1];
  for (const std::string& line : all) {
    EXPECT_LE(line.substr(0, line.find(']')).size(), 75u) << line;
    EXPECT_FALSE(line.ends_with(' ')) << line;
  }
  const std::string text = Counting({2, 100});
  int64_t numbers = 0;
  for (size_t at = 0; (at = text.find_first_of("0123456789", at)) < text.find("]]"); ++numbers) {
    size_t digits = 0;
    EXPECT_EQ(std::stoll(text.substr(at), &digits), numbers);
    at += digits;
  }
  EXPECT_EQ(numbers, 200);
}

TEST(PrintTest, ViewsAndTensorsWithGradients) {
  Tensor x = Tensor::FromVector<float>({1, 2, 3, 4}, {2, 2});
  x.SetRequiresGrad();
  EXPECT_EQ(ToString(x.Transpose(0, 1)),
            "[[1., 3.],\n"
            " [2., 4.]] f32[2, 2] on cpu");
  std::ostringstream out;
  out << x.Slice(0, 1, 2);
  EXPECT_EQ(out.str(), "[[3., 4.]] f32[1, 2] on cpu");
}

TEST(PrintTest, WithoutElements) {
  EXPECT_EQ(ToString(Tensor()), "undefined tensor");
  EXPECT_EQ(ToString(Tensor::Zeros({100000, 0}, DType::kF32)), "[] f32[100000, 0] on cpu");
  EXPECT_EQ(ToString(Tensor::Zeros({2}, DType::kF16, kMeta)), "f16[2] on meta");
}

}  // namespace
}  // namespace lockstep
