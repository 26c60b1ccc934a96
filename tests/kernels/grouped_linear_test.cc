// What is particular to grouped products: a row's bits do not depend on its group.
#include "kernels/grouped_linear/grouped_linear.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "core/autograd/engine.h"
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

class RowBits : public testing::TestWithParam<std::tuple<Device, DType>> {
 protected:
  void SetUp() override {
    if (std::get<0>(GetParam()).is_cuda() && cuda::DeviceCount() == 0) GTEST_SKIP();
  }
};

// Results and input gradients of groups of 1 to 20 rows, and of 40, against those of each row by
// itself.
TEST_P(RowBits, DoNotDependOnTheOtherRows) {
  const auto [device, dtype] = GetParam();
  constexpr int64_t n = 48, k = 72;
  const Tensor weight = Numbers({2, n, k}, 1, dtype).To(device);
  const auto run = [&](const Tensor& rows, int32_t first_group, const Tensor& grads) {
    const auto r = static_cast<int32_t>(rows.dim(0));
    Tensor x = rows.To(device);
    x.SetRequiresGrad();
    const Tensor y = ops::GroupedLinear(
        x, weight, Tensor::FromVector<int32_t>({0, first_group, r}, {3}, device));
    Backward(y, grads.To(device));
    return std::pair(Values(y), Values(x.grad()));
  };
  for (const int32_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 20, 40}) {
    const Tensor x = Numbers({rows, k}, 2, dtype), dy = Numbers({rows, n}, 3, dtype);
    for (const int32_t first_group : {rows, 0, rows / 2}) {
      const auto [y, dx] = run(x, first_group, dy);
      for (int32_t row = 0; row < rows; ++row) {
        const auto [y1, dx1] = run(x.Slice(0, row, row + 1).Clone(), row < first_group ? 1 : 0,
                                   dy.Slice(0, row, row + 1).Clone());
        EXPECT_EQ(std::vector(y.begin() + row * n, y.begin() + (row + 1) * n), y1)
            << "row " << row << " of " << rows;
        EXPECT_EQ(std::vector(dx.begin() + row * k, dx.begin() + (row + 1) * k), dx1)
            << "row " << row << " of " << rows;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, RowBits,
                         testing::Combine(test::Devices(),
                                          testing::Values(DType::kF32, DType::kBF16, DType::kF16)));

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
