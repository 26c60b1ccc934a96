// Unary, binary, compare and where at values that their OpCases do not draw: NaN, infinities, ties,
// poles, and integers that no double holds.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/autograd/engine.h"
#include "kernels/binary/binary.h"
#include "kernels/compare/compare.h"
#include "kernels/scale/scale.h"
#include "kernels/unary/unary.h"
#include "kernels/where/where.h"
#include "tests/gpu_test.h"

namespace lockstep {
namespace {

using testing::ElementsAre;

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::nanf("");

Tensor Vector(const std::vector<float>& x, Device device = kCpu) {
  return Tensor::FromVector(x, {std::ssize(x)}, device);
}

// The gradient of x for dy = 1.
std::vector<float> Gradient(Tensor (*f)(const Tensor&), const std::vector<float>& values,
                            Device device) {
  Tensor x = Vector(values, device);
  x.SetRequiresGrad();
  Backward(f(x), Tensor::Full(x.shape(), 1, x.dtype(), device));
  return x.grad().ToVector<float>();
}

class ElementwiseTest : public test::DeviceTest {};
INSTANTIATE_TEST_SUITE_P(Devices, ElementwiseTest, test::Devices());

TEST_P(ElementwiseTest, NanStaysNan) {
  const Device device = GetParam();
  Tensor (*const functions[])(const Tensor&) = {
      ops::Relu,  ops::Relu2,      ops::Tanh,   ops::Sigmoid, ops::Silu,     ops::Exp,
      ops::Expm1, ops::Log,        ops::Log1p,  ops::Sqrt,    ops::Rsqrt,    ops::Abs,
      ops::Sign,  ops::Reciprocal, ops::Square, ops::Erf,     ops::Softplus, ops::Floor,
      ops::Ceil,  ops::Round,      ops::Sin,    ops::Cos};
  const Tensor nan = Vector({kNan}, device);
  for (size_t i = 0; i < std::size(functions); ++i) {
    EXPECT_TRUE(std::isnan(functions[i](nan).Item())) << "function " << i;
  }
  EXPECT_TRUE(std::isnan(ops::Clamp(nan, -1, 1).Item()));
  EXPECT_TRUE(std::isnan(ops::Pow(nan, 2).Item()));
  EXPECT_TRUE(std::isnan(ops::LeakyRelu(nan).Item()));
  EXPECT_TRUE(std::isnan(ops::Elu(nan).Item()));
  EXPECT_TRUE(std::isnan((1.0 - nan).Item()));
  const Tensor one = Vector({1}, device);
  for (const auto f : {static_cast<Tensor (*)(const Tensor&, const Tensor&)>(ops::Maximum),
                       static_cast<Tensor (*)(const Tensor&, const Tensor&)>(ops::Minimum)}) {
    EXPECT_TRUE(std::isnan(f(nan, one).Item()));
    EXPECT_TRUE(std::isnan(f(one, nan).Item()));
  }
  for (const auto f : {static_cast<Tensor (*)(const Tensor&, double)>(ops::Maximum),
                       static_cast<Tensor (*)(const Tensor&, double)>(ops::Minimum)}) {
    EXPECT_TRUE(std::isnan(f(one, kNan).Item()));
    EXPECT_TRUE(std::isnan(f(nan, 1).Item()));
  }
  EXPECT_THAT(Gradient([](const Tensor& x) { return ops::Maximum(x, kNan); }, {1}, device),
              ElementsAre(0));
}

// What 16 bits make of special values: conversions are the device's own.
TEST_P(ElementwiseTest, NarrowFloatsKeepNanAndInfinity) {
  const Device device = GetParam();
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    const auto of = [&](Tensor (*f)(const Tensor&), float x) {
      return static_cast<float>(f(Vector({x}, device).To(dtype)).Item());
    };
    for (Tensor (*const f)(const Tensor&) :
         {ops::Relu, ops::Tanh, ops::Sigmoid, ops::Silu, ops::Exp, ops::Log, ops::Sqrt, ops::Abs,
          ops::Sign, ops::Square, ops::Softplus, ops::Floor, ops::Sin}) {
      EXPECT_TRUE(std::isnan(of(f, kNan))) << dtype;
    }
    EXPECT_EQ(of(ops::Exp, 100), kInf) << dtype;
    EXPECT_EQ(of(ops::Exp, -kInf), 0) << dtype;
    EXPECT_EQ(of(ops::Abs, -kInf), kInf) << dtype;
    EXPECT_EQ(of(ops::Log, 0), -kInf) << dtype;
    EXPECT_EQ(of(ops::Reciprocal, 0), kInf) << dtype;
  }
  // Beyond 65504, which f32 has room for.
  const Tensor large = Vector({1000}, device).To(DType::kF16);
  EXPECT_EQ(ops::Square(large).Item(), kInf);
  EXPECT_EQ(ops::Pow(large, 1.7).Item(), kInf);
  EXPECT_EQ(ops::Exp(Vector({12}, device).To(DType::kF16)).Item(), kInf);
}

// Of the exponents that are functions of their own, and one that is not.
TEST_P(ElementwiseTest, PowersAgreeWithTheirFunctions) {
  const Device device = GetParam();
  const std::vector<float> x = {0.25, 3, 7.5};
  const auto same = [&](double exponent, Tensor (*f)(const Tensor&)) {
    EXPECT_EQ(ops::Pow(Vector(x, device), exponent).ToVector<float>(),
              f(Vector(x, device)).ToVector<float>());
  };
  same(2, ops::Square);
  same(0.5, ops::Sqrt);
  same(-1, ops::Reciprocal);
  EXPECT_EQ(ops::Pow(Vector({-3}, device), 2).Item(), 9);
  EXPECT_EQ(ops::Pow(Vector({0}, device), -1).Item(), kInf);
  EXPECT_THAT(Gradient([](const Tensor& v) { return ops::Pow(v, 2); }, {-1, 0, 3}, device),
              ElementsAre(-2, 0, 6));
}

TEST_P(ElementwiseTest, IntegersWrapAround) {
  const Device device = GetParam();
  const auto i64 = [&](const std::vector<int64_t>& x) {
    return Tensor::FromVector(x, {std::ssize(x)}, device);
  };
  // No double holds the sum.
  const Tensor large = i64({(int64_t{1} << 53) + 1, INT64_MAX, -5});
  EXPECT_THAT((large + 1).ToVector<int64_t>(), ElementsAre((int64_t{1} << 53) + 2, INT64_MIN, -4));
  EXPECT_THAT((large - i64({1, -1, 7})).ToVector<int64_t>(),
              ElementsAre(int64_t{1} << 53, INT64_MIN, -12));
  EXPECT_THAT((10 - i64({1, 2})).ToVector<int64_t>(), ElementsAre(9, 8));
  EXPECT_THAT((i64({3, -4}) * i64({5})).ToVector<int64_t>(), ElementsAre(15, -20));
  EXPECT_THAT((i64({3, -4}) * 2).ToVector<int64_t>(), ElementsAre(6, -8));
  EXPECT_THAT((-i64({3, -4})).ToVector<int64_t>(), ElementsAre(-3, 4));
  EXPECT_THAT(ops::Maximum(large, i64({INT64_MAX, 0, -6})).ToVector<int64_t>(),
              ElementsAre(INT64_MAX, INT64_MAX, -5));
  EXPECT_THAT(ops::Minimum(i64({3, -4}), 0).ToVector<int64_t>(), ElementsAre(0, -4));
  const Tensor bytes = Tensor::FromVector<uint8_t>({250, 3}, {2}, device);
  EXPECT_THAT((bytes + bytes).ToVector<uint8_t>(), ElementsAre(244, 6));
  EXPECT_THROW(bytes + 0.5, ArgumentError);
  EXPECT_THROW(bytes * 256, ArgumentError);
  EXPECT_THROW(ops::Div(bytes, bytes), ArgumentError);
}

TEST_P(ElementwiseTest, PolesAreInfinities) {
  const Device device = GetParam();
  const auto of = [&](Tensor (*f)(const Tensor&), float x) {
    return static_cast<float>(f(Vector({x}, device)).Item());
  };
  EXPECT_EQ(of(ops::Log, 0), -kInf);
  EXPECT_TRUE(std::isnan(of(ops::Log, -1)));
  EXPECT_EQ(of(ops::Log1p, -1), -kInf);
  EXPECT_TRUE(std::isnan(of(ops::Sqrt, -1)));
  EXPECT_EQ(of(ops::Rsqrt, 0), kInf);
  EXPECT_EQ(of(ops::Reciprocal, 0), kInf);
  EXPECT_EQ(of(ops::Reciprocal, kInf), 0);
  EXPECT_EQ(of(ops::Exp, -kInf), 0);
  EXPECT_EQ(of(ops::Exp, 89), kInf);
  EXPECT_EQ(of(ops::Expm1, -kInf), -1);
  EXPECT_EQ(of(ops::Softplus, kInf), kInf);
  EXPECT_EQ(of(ops::Softplus, -kInf), 0);
  EXPECT_EQ(of(ops::Sign, -0.0f), 0);
  EXPECT_EQ(of(ops::Sign, -kInf), -1);
  EXPECT_EQ((1.0 / Vector({0}, device)).Item(), kInf);
  EXPECT_TRUE(std::isnan(ops::Pow(Vector({-8}, device), 1.0 / 3).Item()));
  EXPECT_EQ(ops::Pow(Vector({-2}, device), 3).Item(), -8);
  EXPECT_EQ(ops::Clamp(Vector({-kInf}, device), -1, kInf).Item(), -1);
  EXPECT_EQ(ops::LeakyRelu(Vector({-kInf}, device)).Item(), -kInf);
  EXPECT_EQ(ops::Elu(Vector({-kInf}, device)).Item(), -1);
  EXPECT_EQ(of(ops::Silu, kInf), kInf);
  // -infinity / infinity, as torch.
  EXPECT_TRUE(std::isnan(of(ops::Silu, -kInf)));
  EXPECT_EQ(ops::Pow(2, Vector({kInf}, device)).Item(), kInf);
  EXPECT_EQ(ops::Pow(Vector({0}, device), Vector({-1}, device)).Item(), kInf);
  EXPECT_TRUE(std::isnan(ops::Pow(Vector({-8}, device), Vector({1.5}, device)).Item()));
}

// Where a naive formula has no digits left, and where one in f32 would reduce the argument badly.
TEST_P(ElementwiseTest, HardArgumentsKeepTheirDigits) {
  const Device device = GetParam();
  const float small = 1e-9f;
  EXPECT_FLOAT_EQ(ops::Expm1(Vector({small}, device)).Item(), small);
  EXPECT_FLOAT_EQ(ops::Log1p(Vector({small}, device)).Item(), small);
  EXPECT_FLOAT_EQ(ops::Elu(Vector({-small}, device)).Item(), -small);
  EXPECT_FLOAT_EQ(ops::Softplus(Vector({-30}, device)).Item(), std::exp(-30.0f));
  for (const float x : {1e3f, -12345.678f, 1e10f}) {
    EXPECT_NEAR(ops::Sin(Vector({x}, device)).Item(), std::sin(static_cast<double>(x)), 1e-6);
    EXPECT_NEAR(ops::Cos(Vector({x}, device)).Item(), std::cos(static_cast<double>(x)), 1e-6);
  }
  EXPECT_THAT(ops::Round(Vector({-1.5, -0.5, 0.5, 1.5, 2.5, 8388609}, device)).ToVector<float>(),
              ElementsAre(-2, 0, 0, 2, 2, 8388609));
}

TEST_P(ElementwiseTest, GradientsAtKinksAreAsDocumented) {
  const Device device = GetParam();
  EXPECT_THAT(Gradient(ops::Relu, {-1, 0, 1}, device), ElementsAre(0, 0, 1));
  EXPECT_THAT(Gradient(ops::Abs, {-2, 0, 2}, device), ElementsAre(-1, 0, 1));
  EXPECT_THAT(Gradient(ops::Round, {-2, 0.5, 2}, device), ElementsAre(0, 0, 0));
  EXPECT_THAT(
      Gradient([](const Tensor& x) { return ops::Clamp(x, -1, 1); }, {-2, -1, 0, 1, 2}, device),
      ElementsAre(0, 1, 1, 1, 0));
  EXPECT_THAT(Gradient([](const Tensor& x) { return ops::LeakyRelu(x, 0.5); }, {-1, 0, 1}, device),
              ElementsAre(0.5, 0.5, 1));
  EXPECT_THAT(Gradient([](const Tensor& x) { return ops::Elu(x, 0.5); }, {0, 1}, device),
              ElementsAre(0.5, 1));
  EXPECT_THAT(Gradient([](const Tensor& x) { return ops::Pow(x, 0); }, {-1, 0, 1}, device),
              ElementsAre(0, 0, 0));
  EXPECT_THAT(Gradient([](const Tensor& x) { return ops::Maximum(x, 0); }, {-1, 0, 1}, device),
              ElementsAre(0, 1, 1));
  EXPECT_THAT(Gradient([](const Tensor& x) { return ops::Minimum(x, 0); }, {-1, 0, 1}, device),
              ElementsAre(1, 1, 0));
  EXPECT_THAT(Gradient([](const Tensor& x) { return ops::Pow(0, x); }, {0, 1}, device),
              ElementsAre(0, 0));
}

// Who gets the gradient of a maximum, and those of powers of 0.
TEST_P(ElementwiseTest, GradientsOfTwoOperandsAreAsDocumented) {
  const Device device = GetParam();
  const auto gradients = [&](Tensor (*f)(const Tensor&, const Tensor&),
                             const std::vector<float>& left, const std::vector<float>& right) {
    Tensor a = Vector(left, device), b = Vector(right, device);
    a.SetRequiresGrad();
    b.SetRequiresGrad();
    Backward(f(a, b), Tensor::Full(a.shape(), 4, a.dtype(), device));
    return std::pair(a.grad().ToVector<float>(), b.grad().ToVector<float>());
  };
  auto [a, b] = gradients(ops::Maximum, {1, 2, 3, kNan}, {2, 2, 2, 2});
  EXPECT_THAT(a, ElementsAre(0, 2, 4, 0));
  EXPECT_THAT(b, ElementsAre(4, 2, 0, 0));
  std::tie(a, b) = gradients(ops::Minimum, {1, 2, 3, 2}, {2, 2, 2, kNan});
  EXPECT_THAT(a, ElementsAre(4, 2, 0, 0));
  EXPECT_THAT(b, ElementsAre(0, 2, 4, 0));
  std::tie(a, b) = gradients(ops::Pow, {0, 0, 5, 1}, {0, 2, 0, 7});
  EXPECT_THAT(a, ElementsAre(0, 0, 0, 28));
  EXPECT_THAT(b, ElementsAre(0, 0, testing::FloatNear(4 * std::log(5.0f), 1e-5f), 0));
}

TEST_P(ElementwiseTest, LargeIntegersAreComparedExactly) {
  const Device device = GetParam();
  const std::vector<int64_t> values = {(int64_t{1} << 53) + 1, -1, INT64_MIN, INT64_MAX};
  const Tensor x = Tensor::FromVector(values, {4}, device);
  const Tensor y =
      Tensor::FromVector<int64_t>({int64_t{1} << 53, -1, INT64_MIN + 1, INT64_MAX}, {4}, device);
  EXPECT_EQ(ops::Equal(x, y).To(DType::kI32).ToVector<int32_t>(),
            (std::vector<int32_t>{0, 1, 0, 1}));
  EXPECT_EQ((x < y).To(DType::kI32).ToVector<int32_t>(), (std::vector<int32_t>{0, 0, 1, 0}));
  EXPECT_EQ((x > 0x1p53).To(DType::kI32).ToVector<int32_t>(), (std::vector<int32_t>{1, 0, 0, 1}));
  const Tensor none = Tensor::Zeros({4}, DType::kBool, device);
  EXPECT_EQ(ops::Where(none, y, x).ToVector<int64_t>(), values);
}

// What is not taken may be anything, also in backward.
TEST_P(ElementwiseTest, WhereHidesWhatIsNotTaken) {
  const Device device = GetParam();
  Tensor x = Vector({-1, 4, 0, 9}, device);
  x.SetRequiresGrad();
  const Tensor positive = x > 0;
  const Tensor root = ops::Where(positive, ops::Sqrt(ops::Where(positive, x, 1)), 0);
  EXPECT_THAT(root.ToVector<float>(), ElementsAre(0, 2, 0, 3));
  Backward(root, Vector({1, 1, kInf, 1}, device));
  EXPECT_THAT(x.grad().ToVector<float>(),
              ElementsAre(0, 0.25, 0, testing::FloatNear(1 / 6.0f, 1e-7f)));
}

// 1 + 2^-9 is no bf16: what is computed with it is rounded once, from f32.
TEST(ElementwiseCpuTest, NumbersAreNotRoundedToNarrowDTypes) {
  const double number = 1 + 0x1p-9;
  const Tensor one = Tensor::Full({1}, 1, DType::kBF16);
  EXPECT_EQ((one - number).Item(), -0x1p-9);
  EXPECT_EQ((number - one).Item(), 0x1p-9);
  // A comparison is with what the dtype makes of the number.
  EXPECT_TRUE(ops::Equal(Tensor::Full({1}, 0.1, DType::kBF16), 0.1).Item());
}

TEST_P(ElementwiseTest, EightBitFloatsCompare) {
  for (const DType dtype : {DType::kF8E4M3, DType::kF8E5M2}) {
    const Tensor x = Vector({-2, 1, kNan, 0.3125}).To(dtype).To(GetParam());
    EXPECT_EQ((x < 0.5).To(DType::kI32).ToVector<int32_t>(), (std::vector<int32_t>{1, 0, 0, 1}));
    EXPECT_EQ(ops::IsNan(x).To(DType::kI32).ToVector<int32_t>(),
              (std::vector<int32_t>{0, 0, 1, 0}));
    EXPECT_EQ(x.To(DType::kF32).ToVector<float>()[3], 0.3125f);
  }
}

TEST_P(ElementwiseTest, InfinitiesAreFound) {
  const Tensor x = Vector({-kInf, 1, kNan, kInf}, GetParam());
  EXPECT_EQ(ops::IsInf(x).To(DType::kI32).ToVector<int32_t>(), (std::vector<int32_t>{1, 0, 0, 1}));
}

TEST_P(ElementwiseTest, WhereOfTwoNumbers) {
  const Tensor y = ops::Where(Vector({-1, 2}, GetParam()) > 0, 1.5, -2);
  EXPECT_EQ(y.dtype(), DType::kF32);
  EXPECT_THAT(y.ToVector<float>(), ElementsAre(-2, 1.5));
}

TEST(ElementwiseCpuTest, EightBitFloatsAreChosenOnTheCpu) {
  const Tensor x = Vector({-2, 1, kNan}).To(DType::kF8E4M3);
  EXPECT_EQ((x < 1.5).To(DType::kI32).ToVector<int32_t>(), (std::vector<int32_t>{1, 1, 0}));
  EXPECT_EQ(ops::IsNan(x).To(DType::kI32).ToVector<int32_t>(), (std::vector<int32_t>{0, 0, 1}));
  const Tensor chosen = ops::Where(x < 0, x, 0.5);
  EXPECT_THAT(chosen.To(DType::kF32).ToVector<float>(), ElementsAre(-2, 0.5, 0.5));
}

TEST(ElementwiseCpuTest, TheConditionMustStayAsItIs) {
  const Tensor condition = Tensor::Full({2}, 1, DType::kBool);
  Tensor x = Vector({1, 2});
  x.SetRequiresGrad();
  const Tensor y = ops::Where(condition, x, 0);
  condition.Fill(0);
  EXPECT_THROW(Backward(y, Vector({1, 1})), Error);
}

}  // namespace
}  // namespace lockstep
