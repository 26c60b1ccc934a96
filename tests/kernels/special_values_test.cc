// What reductions, sorts and indices make of NaNs, infinities, zeros and equal elements, on the CPU
// and on a GPU: random inputs have none of these.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/autograd/engine.h"
#include "kernels/compare/compare.h"
#include "kernels/cumsum/cumsum.h"
#include "kernels/index/index.h"
#include "kernels/loss/loss.h"
#include "kernels/matmul/matmul.h"
#include "kernels/pad/pad.h"
#include "kernels/reduce/reduce.h"
#include "kernels/topk/topk.h"
#include "kernels/tril_triu/tril_triu.h"
#include "tests/gpu_test.h"

namespace lockstep {
namespace {

using test::kGpu;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr DType kFloats[] = {DType::kF32, DType::kF16, DType::kBF16};

std::vector<float> Floats(const Tensor& x) { return x.To(DType::kF32).ToVector<float>(); }

// NaNs are equal.
void ExpectSame(const Tensor& got, const std::vector<float>& want) {
  const std::vector<float> values = Floats(got);
  ASSERT_EQ(values.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_TRUE(values[i] == want[i] || (std::isnan(values[i]) && std::isnan(want[i])))
        << "element " << i << " is " << values[i] << ", not " << want[i];
  }
}

class SpecialValues : public test::DeviceTest {
 protected:
  Tensor Of(const std::vector<float>& values, const Shape& shape, DType dtype = DType::kF32) const {
    return Tensor::FromVector(values, shape, GetParam()).To(dtype);
  }
  Tensor Index(const std::vector<int64_t>& values, const Shape& shape) const {
    return Tensor::FromVector(values, shape, GetParam());
  }
  // Of the sum of f(leaf), where the leaf is `x`.
  template <class F>
  Tensor Gradient(const Tensor& x, const F& f) const {
    Tensor leaf = x.Clone().SetRequiresGrad();
    const Tensor y = f(leaf);
    Backward(y, Tensor::Full(y.shape(), 1, y.dtype(), y.device()));
    return leaf.grad();
  }
};

TEST_P(SpecialValues, OfEqualExtremesTheFirstAndNanBeforeAll) {
  const Tensor x = Of({3, 1, 3, 1, NAN, 7, NAN, -7, -kInf, kInf, -kInf, kInf}, {3, 4});
  ExpectSame(ops::Min(x, {1}), {1, NAN, -kInf});
  ExpectSame(ops::Max(x, {1}), {3, NAN, kInf});
  EXPECT_EQ(ops::ArgMax(x, {1}).ToVector<int64_t>(), (std::vector<int64_t>{0, 0, 1}));
  EXPECT_EQ(ops::ArgMin(x, {1}).ToVector<int64_t>(), (std::vector<int64_t>{1, 0, 0}));
  ExpectSame(ops::Norm(x, kInf, {1}), {3, NAN, kInf});
  // In row-major order of what is reduced.
  const Tensor y = Of({0, 5, 9, 1, 2, 9}, {2, 3});
  EXPECT_EQ(ops::ArgMax(y).Item(), 2);
  EXPECT_EQ(ops::ArgMin(y.Transpose(0, 1)).Item(), 0);
  EXPECT_EQ(ops::ArgMax(y.Transpose(0, 1)).Item(), 4);
  ExpectSame(Gradient(y, [](const Tensor& v) { return ops::Min(v, {1}); }), {1, 0, 0, 1, 0, 0});
  const Tensor z = Of({-4, 4, 2, 0, 0, 0}, {2, 3});
  ExpectSame(Gradient(z, [](const Tensor& v) { return ops::Norm(v, kInf, {1}); }),
             {-1, 0, 0, 0, 0, 0});
}

TEST_P(SpecialValues, LogSumExp) {
  const Tensor x = Of({-kInf, -kInf, -kInf, 2, kInf, 0, NAN, 1, 1000, 1000}, {5, 2});
  const std::vector<float> y = Floats(ops::LogSumExp(x, {1}));
  EXPECT_EQ(y[0], -kInf);
  EXPECT_EQ(y[1], 2);
  EXPECT_EQ(y[2], kInf);
  EXPECT_TRUE(std::isnan(y[3]));
  EXPECT_NEAR(y[4], 1000 + std::log(2.0), 1e-4);
  const Tensor masked = Of({-kInf, -kInf, -kInf, 2}, {2, 2});
  ExpectSame(Gradient(masked, [](const Tensor& v) { return ops::LogSumExp(v, {1}); }),
             {0, 0, 0, 1});
}

TEST_P(SpecialValues, GradientsAtZeroAreZero) {
  const Tensor x = Of({0, 0, 0, 0}, {2, 2});
  ExpectSame(Gradient(x, [](const Tensor& v) { return ops::Norm(v, 2, {1}); }), {0, 0, 0, 0});
  ExpectSame(Gradient(x, [](const Tensor& v) { return ops::Norm(v, 1, {1}); }), {0, 0, 0, 0});
  const Tensor same = Of({5, 5, 5}, {3});
  ExpectSame(ops::Std(same), {0});
  ExpectSame(Gradient(same, [](const Tensor& v) { return ops::Std(v); }), {0, 0, 0});
}

TEST_P(SpecialValues, ProductsOfZeros) {
  const Tensor x = Of({2, 0, 3, 0, 4, 0, 2, 3, 5}, {3, 3});
  ExpectSame(ops::Prod(x, {1}), {0, 0, 30});
  ExpectSame(Gradient(x, [](const Tensor& v) { return ops::Prod(v, {1}); }),
             {0, 6, 0, 0, 0, 0, 15, 10, 6});
}

TEST_P(SpecialValues, NanIsNotZero) {
  const Tensor x = Of({NAN, 0, 0, -0.0f, NAN, 1}, {3, 2});
  ExpectSame(ops::Any(x, {1}), {1, 0, 1});
  ExpectSame(ops::All(x, {1}), {0, 0, 1});
  ExpectSame(ops::All(x.To(DType::kBool), {1}), {0, 0, 1});
  EXPECT_EQ(ops::Any(x).dtype(), DType::kBool);
  const Tensor large = Tensor::Full({100}, int64_t{1} << 40, DType::kI64, GetParam());
  ExpectSame(ops::All(large), {1});
}

TEST_P(SpecialValues, RunningSumsKeepNansFromThereOn) {
  const Tensor x = Of({1, 2, NAN, 4, kInf, 1, -kInf, 1}, {2, 4});
  ExpectSame(ops::CumSum(x, 1), {1, 3, NAN, NAN, kInf, kInf, NAN, NAN});
  ExpectSame(ops::CumSum(x.Transpose(0, 1), 0).Transpose(0, 1),
             {1, 3, NAN, NAN, kInf, kInf, NAN, NAN});
}

TEST_P(SpecialValues, LongRunningSumsDoNotDrift) {
  constexpr int64_t kN = 50'000;
  // Adding one after the other in f32 would be 5e-4 off. In blocks of 256 terms, each addition
  // rounds by at most 6e-8.
  constexpr double kTolerance = (256 + kN / 256) * 6e-8;
  const Tensor x = Tensor::Full({2 * kN}, 0.1, DType::kF32, GetParam());
  const double want = static_cast<double>(0.1f) * kN;
  EXPECT_NEAR(ops::CumSum(x, 0).ToVector<float>()[kN - 1], want, kTolerance * want);
  EXPECT_NEAR(ops::CumSum(x.View({kN, 2}), 0).ToVector<float>().back(), want, kTolerance * want);
}

TEST_P(SpecialValues, SortsAreStable) {
  for (const DType dtype : kFloats) {
    const std::vector<float> row = {1, NAN, -0.0f, 0, 1, kInf, -kInf, -2};
    std::vector<float> rows = row;
    rows.insert(rows.end(), row.begin(), row.end());
    const Tensor x = Of(rows, {2, 8}, dtype);
    const auto [down, down_at] = ops::Sort(x, 1, /*descending=*/true);
    const std::vector<int64_t> descending = {1, 5, 0, 4, 2, 3, 7, 6};
    const auto [up, up_at] = ops::Sort(x);
    const std::vector<int64_t> ascending = {6, 7, 2, 3, 0, 4, 5, 1};
    const auto [top, top_at] = ops::TopK(x, 3);
    for (int64_t r = 0; r < 2; ++r) {
      ExpectSame(down.Slice(0, r, r + 1), {NAN, kInf, 1, 1, 0, 0, -2, -kInf});
      EXPECT_EQ(down_at.Slice(0, r, r + 1).ToVector<int64_t>(), descending) << dtype;
      ExpectSame(up.Slice(0, r, r + 1), {-kInf, -2, 0, 0, 1, 1, kInf, NAN});
      EXPECT_EQ(up_at.Slice(0, r, r + 1).ToVector<int64_t>(), ascending) << dtype;
      ExpectSame(top.Slice(0, r, r + 1), {NAN, kInf, 1});
    }
    EXPECT_EQ(top_at.shape(), (Shape{2, 3}));
  }
  const Tensor x = Of({1, 5, 5, 2, 5, 0}, {2, 3});
  ExpectSame(Gradient(x, [](const Tensor& v) { return ops::TopK(v, 1).values; }),
             {0, 1, 0, 0, 1, 0});
}

TEST_P(SpecialValues, OfSeveralElementsForOnePlaceTheLastCounts) {
  const Tensor index = Index({2, 0, 2, 1, 1, 1}, {2, 3});
  const Tensor source = Of({1, 2, 3, 4, 5, 6}, {2, 3});
  const Tensor x = Of({10, 20, 30, 40, 50, 60}, {2, 3});
  ExpectSame(ops::Scatter(x, 1, index, source), {2, 20, 3, 40, 6, 60});
  ExpectSame(Gradient(x, [&](const Tensor& v) { return ops::Scatter(v, 1, index, source); }),
             {0, 1, 0, 1, 0, 1});
  ExpectSame(Gradient(source, [&](const Tensor& v) { return ops::Scatter(x, 1, index, v); }),
             {0, 1, 1, 0, 0, 1});
}

TEST_P(SpecialValues, SumsForOnePlaceAreRoundedOnce) {
  // One after the other, ones would be lost next to 256 in bf16.
  const Tensor x = Of({256, 0}, {2}, DType::kBF16);
  const Tensor ones = Of({1, 1, 1, 1}, {4}, DType::kBF16);
  ExpectSame(ops::ScatterAdd(x, 0, Index({0, 1, 0, 0}, {4}), ones), {260, 1});
  const Tensor slices = Of(std::vector<float>(300, 1), {300, 1}, DType::kBF16);
  const Tensor zeros = Of({0, 0}, {2, 1}, DType::kBF16);
  ExpectSame(ops::ScatterAdd(zeros, 0, Index(std::vector<int64_t>(300, 1), {300, 1}), slices),
             {0, 300});
}

TEST_P(SpecialValues, WhatATriangleDropsIsZero) {
  const Tensor x = Of({1, NAN, kInf, 1}, {2, 2});
  ExpectSame(ops::Tril(x), {1, 0, kInf, 1});
  ExpectSame(ops::Triu(x), {1, NAN, 0, 1});
}

TEST_P(SpecialValues, IntegersAreReducedExactly) {
  const int64_t large = (int64_t{1} << 53) + 1;
  const Tensor x = Index({large, 1, INT64_MIN, large, INT64_MAX, 3}, {2, 3});
  EXPECT_EQ(ops::Sum(x, {0}).ToVector<int64_t>(),
            (std::vector<int64_t>{2 * large, INT64_MIN, INT64_MIN + 3}));
  EXPECT_EQ(ops::Max(x, {1}).ToVector<int64_t>(), (std::vector<int64_t>{large, INT64_MAX}));
  EXPECT_EQ(ops::Min(x, {1}).ToVector<int64_t>(), (std::vector<int64_t>{INT64_MIN, 3}));
  EXPECT_EQ(ops::ArgMin(x, {0}).ToVector<int64_t>(), (std::vector<int64_t>{0, 0, 0}));
  EXPECT_EQ(ops::ArgMax(x, {0}).ToVector<int64_t>(), (std::vector<int64_t>{0, 1, 1}));
  EXPECT_EQ(ops::CumSum(x, 0).ToVector<int64_t>(),
            (std::vector<int64_t>{large, 1, INT64_MIN, 2 * large, INT64_MIN, INT64_MIN + 3}));
  const Tensor bytes = Tensor::FromVector<uint8_t>({200, 100, 7}, {3}, GetParam());
  EXPECT_EQ(ops::Sum(bytes).Item(), 307);
  EXPECT_EQ(ops::Max(bytes).dtype(), DType::kU8);
  EXPECT_EQ(ops::Max(bytes).Item(), 200);
  EXPECT_EQ(ops::CumSum(bytes, 0).ToVector<int64_t>(), (std::vector<int64_t>{200, 300, 307}));
}

TEST_P(SpecialValues, MasksAreCounted) {
  // Several columns a warp, several warps a column, and a part of a block.
  for (const Shape& shape : {Shape{40'003}, Shape{3, 20'001}, Shape{700, 45}, Shape{5, 90, 7}}) {
    std::vector<float> values(static_cast<size_t>(shape.numel()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = i % 3 == 0 || i % 7 == 0 ? 1 : 0;
    const Tensor numbers = Tensor::FromVector(values, shape);
    const Tensor mask = numbers.To(GetParam()).To(DType::kBool);
    for (int d = 0; d < shape.ndim(); ++d) {
      const Tensor counts = ops::Sum(mask, {d});
      EXPECT_EQ(counts.dtype(), DType::kI64);
      EXPECT_EQ(Floats(counts), Floats(ops::Sum(numbers, {d}))) << shape << " over " << d;
    }
    EXPECT_EQ(ops::Sum(mask).Item(), ops::Sum(numbers).Item()) << shape;
    // Also where a row is cut by the grid.
    EXPECT_EQ(Floats(ops::CumSum(mask, -1)), Floats(ops::CumSum(numbers, -1))) << shape;
  }
}

TEST_P(SpecialValues, AnyAndAllTakeEveryDType) {
  for (const DType dtype :
       {DType::kF64, DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2,
        DType::kI64, DType::kI32, DType::kU16, DType::kU8, DType::kBool}) {
    const Tensor x = Tensor::FromVector<float>({0, 1, 1, 0, 0, 1}, {3, 2}).To(dtype);
    const Tensor there = x.To(GetParam());
    EXPECT_EQ(Floats(ops::Any(there, {0})), (std::vector<float>{1, 1})) << dtype;
    EXPECT_EQ(Floats(ops::All(there, {1})), (std::vector<float>{0, 0, 0})) << dtype;
    EXPECT_EQ(Floats(ops::All(there.Slice(0, 1, 2), {0})), (std::vector<float>{1, 0})) << dtype;
  }
}

TEST_P(SpecialValues, CertainTargetsOfInfiniteLogits) {
  const Tensor x = Of({kInf, -kInf, kInf, -kInf, NAN}, {5});
  const Tensor target = Of({1, 0, 0, 1, 1}, {5});
  ExpectSame(ops::BceWithLogits(x, target, Reduction::kNone), {0, 0, kInf, kInf, NAN});
  ExpectSame(
      Gradient(x, [&](const Tensor& v) { return ops::BceWithLogits(v, target, Reduction::kNone); }),
      {0, 0, 1, -1, NAN});
}

TEST_P(SpecialValues, MaximaWithTheirPlaces) {
  const Tensor x = Of({3, 1, 3, -7, NAN, 7}, {2, 3});
  const auto [largest, at] = ops::MaxWithIndex(x, -1);
  ExpectSame(largest, {3, NAN});
  EXPECT_EQ(at.ToVector<int64_t>(), (std::vector<int64_t>{0, 1}));
  const auto [smallest, where] = ops::MinWithIndex(x, 0, /*keepdim=*/true);
  EXPECT_EQ(smallest.shape(), (Shape{1, 3}));
  ExpectSame(smallest, {-7, NAN, 3});
  EXPECT_EQ(where.ToVector<int64_t>(), (std::vector<int64_t>{1, 1, 0}));
  ExpectSame(Gradient(x, [](const Tensor& v) { return ops::MaxWithIndex(v, 1).values; }),
             {1, 0, 0, 0, 1, 0});
}

// One term for each of the batch, whose digits beyond bf16 are all that is left of their sum.
TEST_P(SpecialValues, GradientsOfRepeatedFactorsAreRoundedOnce) {
  const float x = 1 + 0x1p-7f;
  const Tensor a = Of({x, 1, -1, 1}, {2, 2, 1, 1}, DType::kBF16);
  const Tensor dy = Of({x, 1, 1 + 0x1p-6f, 1}, {2, 2, 1, 1}, DType::kBF16);
  Tensor b = Of({1, 1}, {2, 1, 1}, DType::kBF16).SetRequiresGrad();
  Backward(ops::MatMul(a, b), dy);
  ExpectSame(b.grad(), {0x1p-14f, 2});
  Tensor first = b.Detach().Clone().SetRequiresGrad();
  Backward(ops::MatMul(first, a), dy);
  ExpectSame(first.grad(), {0x1p-14f, 2});
}

TEST_P(SpecialValues, PadsWithWhatTheDTypeHas) {
  const Tensor bytes = Tensor::FromVector<uint8_t>({1, 2}, {2}, GetParam());
  EXPECT_THROW(ops::Pad(bytes, {{1, 1}}, 0.5), ArgumentError);
  EXPECT_THROW(ops::Pad(bytes, {{1, 1}}, -1), ArgumentError);
  EXPECT_THROW(ops::Pad(bytes, {{1, 1}}, 256), ArgumentError);
  EXPECT_EQ(ops::Pad(bytes, {{1, 1}}, 255).ToVector<uint8_t>(),
            (std::vector<uint8_t>{255, 1, 2, 255}));
}

INSTANTIATE_TEST_SUITE_P(, SpecialValues, test::Devices(), [](const auto& info) {
  return std::string(info.param.is_cpu() ? "Cpu" : "Gpu");
});

class IndicesOnGpu : public test::GpuTest {};

TEST_F(IndicesOnGpu, OutOfRangeAreNanAndLeftOut) {
  const Tensor x = Tensor::FromVector<float>({1, 2, 3, 4}, {2, 2}, kGpu);
  const Tensor index = Tensor::FromVector<int64_t>({1, -1, 2, 0}, {4}, kGpu);
  ExpectSame(ops::IndexSelect(x, 0, index), {3, 4, NAN, NAN, NAN, NAN, 1, 2});
  const Tensor integers = Tensor::FromVector<int32_t>({5, 6}, {2}, kGpu);
  EXPECT_EQ(ops::Gather(integers, 0, index).ToVector<int32_t>(),
            (std::vector<int32_t>{6, -1, -1, 5}));
  // Bytes that are bools.
  const Tensor bools = Tensor::Full({2}, 1, DType::kBool, kGpu);
  const Tensor picked = ops::Gather(bools, 0, index);
  EXPECT_EQ(Floats(picked), (std::vector<float>{1, 0, 0, 1}));
  EXPECT_EQ(Floats(ops::LogicalNot(picked)), (std::vector<float>{0, 1, 1, 0}));
  const Tensor source = Tensor::FromVector<float>({10, 20, 30, 40}, {4}, kGpu);
  const Tensor two = Tensor::FromVector<float>({1, 2}, {2}, kGpu);
  ExpectSame(ops::Scatter(two, 0, index, source), {40, 10});
  ExpectSame(ops::ScatterAdd(two, 0, index, source), {41, 12});
  // One index for each column: not sorted.
  const Tensor ones = Tensor::FromVector<int64_t>({2, 1}, {1, 2}, kGpu);
  const Tensor row = Tensor::FromVector<float>({10, 20}, {1, 2}, kGpu);
  ExpectSame(ops::ScatterAdd(x, 0, ones, row), {1, 2, 3, 24});
}

// The call names itself, before it copies anything; the tensors are views of one element.
TEST_F(IndicesOnGpu, MoreThanIsSortedIsRefusedInForward) {
  constexpr int64_t kRows = (int64_t{1} << 29) + 1;
  Tensor x = Tensor::Zeros({1, 1}, DType::kF32, kGpu).SetRequiresGrad();
  const Tensor wide = x.Expand({kRows, 2});
  const Tensor index = Tensor::Zeros({1, 1}, DType::kI64, kGpu).Expand({kRows, 2});
  const auto message = [](const auto& f) -> std::string {
    try {
      f();
    } catch (const ArgumentError& e) {
      return e.what();
    }
    return "none";
  };
  EXPECT_THAT(message([&] { ops::Gather(wide, 1, index); }),
              testing::HasSubstr("gather: its gradient sorts the index, and 1073741826 elements"));
  EXPECT_THAT(message([&] { ops::ScatterAdd(wide, 1, index, wide); }),
              testing::HasSubstr("scatter_add: it sorts the index"));
  EXPECT_THAT(message([&] { ops::TopK(wide, 1); }),
              testing::HasSubstr("topk: it sorts all elements"));
}

}  // namespace
}  // namespace lockstep
