// What is particular to grouped products: a row's bits do not depend on its group.
#include "kernels/grouped_linear/grouped_linear.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/autograd/engine.h"
#include "core/cuda/blaslt.h"
#include "core/philox.h"
#include "tests/gpu_test.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

using test::MessageOf;
using testing::HasSubstr;

Tensor Numbers(const Shape& shape, uint64_t stream, DType dtype) {
  std::vector<float> values(static_cast<size_t>(shape.numel()));
  const Philox random(17);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(random.At(stream, static_cast<int64_t>(i)) % 2001) / 1000 - 1;
  }
  return Tensor::FromVector(values, shape).To(dtype);
}

std::vector<float> Values(const Tensor& x) { return x.To(kCpu).To(DType::kF32).ToVector<float>(); }

// How products of a dtype are computed.
struct Arithmetic {
  DType dtype;
  bool tf32 = false;
};

class Bits : public testing::TestWithParam<std::tuple<Device, Arithmetic>> {
 protected:
  void SetUp() override {
    if (device().is_cuda() && cuda::DeviceCount() == 0) GTEST_SKIP();
    cuda::AllowTf32(std::get<1>(GetParam()).tf32);
  }
  void TearDown() override { cuda::AllowTf32(false); }

  Device device() const { return std::get<0>(GetParam()); }
  DType dtype() const { return std::get<1>(GetParam()).dtype; }

  struct Results {
    std::vector<float> y, dx, dweight;
  };
  // Of groups of these sizes. x, weight and dy begin `at` elements after an aligned address.
  Results Run(const Tensor& x, const Tensor& weight, const Tensor& dy,
              const std::vector<int32_t>& sizes, int64_t at = 0) const {
    std::vector<int32_t> offsets = {0};
    for (const int32_t size : sizes) offsets.push_back(offsets.back() + size);
    const auto place = [&](const Tensor& values) {
      const Tensor all = Tensor::Empty({at + values.numel()}, values.dtype(), device());
      const Tensor placed = all.Slice(0, at, at + values.numel()).View(values.shape());
      placed.CopyFrom(values.To(device()));
      return placed;
    };
    Tensor input = place(x), w = place(weight);
    input.SetRequiresGrad();
    w.SetRequiresGrad();
    const Tensor y =
        ops::GroupedLinear(input, w, Tensor::FromVector(offsets, {std::ssize(offsets)}, device()));
    Backward(y, place(dy));
    return {Values(y), Values(input.grad()), Values(w.grad())};
  }
};

std::vector<float> Part(const std::vector<float>& all, int64_t begin, int64_t end) {
  return {all.begin() + begin, all.begin() + end};
}

// Results and input gradients of groups of 1 to 20 rows, of 40, and of 150, which have larger tiles
// on a GPU, against those of each row by itself.
TEST_P(Bits, OfARowDoNotDependOnTheOtherRows) {
  constexpr int64_t n = 48, k = 72;
  const Tensor weight = Numbers({2, n, k}, 1, dtype());
  for (const int32_t rows : {1, 2, 3, 4, 5, 7, 9, 20, 40, 150}) {
    const Tensor x = Numbers({rows, k}, 2, dtype()), dy = Numbers({rows, n}, 3, dtype());
    for (const int32_t first_group : {rows, 0, rows / 2}) {
      const Results all = Run(x, weight, dy, {first_group, rows - first_group});
      for (int32_t row = 0; row < rows; row += 1 + rows / 10) {
        const bool first = row < first_group;
        const Results alone = Run(x.Slice(0, row, row + 1), weight, dy.Slice(0, row, row + 1),
                                  {first ? 1 : 0, first ? 0 : 1});
        EXPECT_EQ(Part(all.y, row * n, (row + 1) * n), alone.y) << row << " of " << rows;
        EXPECT_EQ(Part(all.dx, row * k, (row + 1) * k), alone.dx) << row << " of " << rows;
      }
    }
  }
}

// What a rank has of a weight: columns of the product, and of the weight's gradient.
TEST_P(Bits, OfAColumnDoNotDependOnTheOtherColumns) {
  constexpr int64_t n = 144, k = 40, rows = 130;
  const Tensor weight = Numbers({1, n, k}, 1, dtype());
  const Tensor x = Numbers({rows, k}, 2, dtype()), dy = Numbers({rows, n}, 3, dtype());
  const Results all = Run(x, weight, dy, {rows});
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>(0, 16), {16, 144}, {8, 11}}) {
    const Results part = Run(x, weight.Slice(1, begin, end).Contiguous(),
                             dy.Slice(1, begin, end).Contiguous(), {rows});
    for (int64_t row = 0; row < rows; ++row) {
      EXPECT_EQ(Part(part.y, row * (end - begin), (row + 1) * (end - begin)),
                Part(all.y, row * n + begin, row * n + end));
    }
    EXPECT_EQ(part.dweight, Part(all.dweight, begin * k, end * k));
  }
}

// A group's weight gradient is that of the group by itself: of few rows, of none, and of many.
TEST_P(Bits, OfAWeightGradientDoNotDependOnTheOtherGroups) {
  constexpr int64_t n = 24, k = 136;
  const std::vector<int32_t> sizes = {3, 0, 17, 140, 1};
  const Tensor weight = Numbers({std::ssize(sizes), n, k}, 1, dtype());
  const Tensor x = Numbers({161, k}, 2, dtype()), dy = Numbers({161, n}, 3, dtype());
  const Results all = Run(x, weight, dy, sizes);
  int64_t begin = 0;
  for (int64_t e = 0; e < std::ssize(sizes); ++e) {
    const int64_t end = begin + sizes[static_cast<size_t>(e)];
    const Results alone = Run(x.Slice(0, begin, end), weight.Slice(0, e, e + 1),
                              dy.Slice(0, begin, end), {static_cast<int32_t>(end - begin)});
    EXPECT_EQ(alone.dweight, Part(all.dweight, e * n * k, (e + 1) * n * k)) << "group " << e;
    begin = end;
  }
}

TEST_P(Bits, DoNotDependOnAlignment) {
  constexpr int64_t n = 136, k = 72, rows = 150;
  const Tensor weight = Numbers({2, n, k}, 1, dtype());
  const Tensor x = Numbers({rows, k}, 2, dtype()), dy = Numbers({rows, n}, 3, dtype());
  const Results aligned = Run(x, weight, dy, {110, 40}), odd = Run(x, weight, dy, {110, 40}, 3);
  EXPECT_EQ(odd.y, aligned.y);
  EXPECT_EQ(odd.dx, aligned.dx);
  EXPECT_EQ(odd.dweight, aligned.dweight);
}

// Against products of the rounded numbers, which no other arithmetic has.
TEST_P(Bits, AreThoseOfTheArithmetic) {
  constexpr int64_t n = 16, k = 24, rows = 70;
  const auto [dtype, tf32] = std::get<1>(GetParam());
  const Tensor weight = Numbers({1, n, k}, 1, dtype);
  const Tensor x = Numbers({rows, k}, 2, dtype), dy = Numbers({rows, n}, 3, dtype);
  const bool rounds = tf32 && device().is_cuda();
  const auto operand = [&](const Tensor& values) {
    std::vector<float> numbers = Values(values);
    for (float& v : numbers) {
      if (rounds) {  // to 10 bits of mantissa
        const float scale = std::ldexp(1.0f, 10 - std::ilogb(v));
        v = v == 0 ? v : std::round(v * scale) / scale;
      }
    }
    return numbers;
  };
  const std::vector<float> a = operand(x), b = operand(weight), g = operand(dy);
  const Results got = Run(x, weight, dy, {rows});
  const double bound = dtype == DType::kF32 ? 2e-5 : dtype == DType::kF16 ? 0x1p-6 : 0x1p-3;
  const auto expect = [&](const std::vector<float>& values, int64_t columns, int64_t depth,
                          const auto& left, const auto& right) {
    for (int64_t i = 0; i < std::ssize(values); ++i) {
      double sum = 0;
      for (int64_t l = 0; l < depth; ++l) {
        sum += static_cast<double>(left(i / columns, l)) * right(l, i % columns);
      }
      EXPECT_NEAR(values[static_cast<size_t>(i)], sum, bound) << i;
    }
  };
  expect(
      got.y, n, k, [&](int64_t i, int64_t l) { return a[i * k + l]; },
      [&](int64_t l, int64_t j) { return b[j * k + l]; });
  expect(
      got.dx, k, n, [&](int64_t i, int64_t l) { return g[i * n + l]; },
      [&](int64_t l, int64_t j) { return b[l * k + j]; });
  expect(
      got.dweight, k, rows, [&](int64_t i, int64_t l) { return g[l * n + i]; },
      [&](int64_t l, int64_t j) { return a[l * k + j]; });
}

INSTANTIATE_TEST_SUITE_P(
    All, Bits,
    testing::Combine(test::Devices(),
                     testing::Values(Arithmetic{DType::kF32}, Arithmetic{DType::kF32, true},
                                     Arithmetic{DType::kBF16}, Arithmetic{DType::kF16})));

TEST(GroupedLinear, RefusesOffsetsThatAreNone) {
  const Tensor x = Numbers({4, 3}, 1, DType::kF32), w = Numbers({2, 5, 3}, 2, DType::kF32);
  const auto message = [&](const std::vector<int32_t>& offsets) {
    return MessageOf([&] { ops::GroupedLinear(x, w, Tensor::FromVector(offsets, {3})); });
  };
  EXPECT_THAT(message({0, 3, 2}), HasSubstr("the offsets must ascend, but 3 comes before 2"));
  EXPECT_THAT(message({0, 2, 3}), HasSubstr("from 0 to the 4 rows of x, got 0 to 3"));
}

}  // namespace
}  // namespace lockstep
