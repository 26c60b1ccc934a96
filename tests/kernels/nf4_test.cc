// Products with 4-bit weights that are dequantised in several panels, and beside plain products.
#include "kernels/nf4/nf4.h"

#include <gtest/gtest.h>

#include "core/autograd/engine.h"

namespace lockstep {
namespace {

Tensor Numbers(const Shape& shape, DType dtype) {
  std::vector<float> values;
  for (int64_t i = 0; i < shape.numel(); ++i) {
    values.push_back(static_cast<float>(i * 7919 % 1009) / 500 - 1);
  }
  return Tensor::FromVector(values, shape).To(dtype);
}

std::vector<float> Values(const Tensor& x) { return x.Detach().To(DType::kF32).ToVector<float>(); }

void CompareWithLinear(int64_t rows, int64_t k, const std::vector<int64_t>& parts, DType dtype) {
  SCOPED_TRACE(testing::Message() << rows << " " << k << " " << dtype);
  std::vector<Nf4Matrix> weight;
  int64_t n = 0;
  for (int64_t part : parts) {
    weight.push_back(ops::Nf4Quantize(Numbers({part, k}, DType::kF32)));
    n += part;
  }
  const Tensor plain = Tensor::Empty({n, k}, dtype);
  int64_t at = 0;
  for (const Nf4Matrix& m : weight) {
    plain.Slice(0, at, at + m.rows()).CopyFrom(ops::Nf4Dequantize(m, dtype));
    at += m.rows();
  }
  Tensor x = Numbers({rows, k}, dtype), other = x.Clone(), bias = Numbers({n}, dtype);
  x.SetRequiresGrad();
  other.SetRequiresGrad();
  const Tensor got = ops::Nf4Linear(x, weight, bias), want = ops::Linear(other, plain, bias);
  EXPECT_TRUE(Values(got) == Values(want));
  const Tensor dy = Numbers({rows, n}, dtype);
  Backward(got, dy);
  Backward(want, dy);
  EXPECT_TRUE(Values(x.grad()) == Values(other.grad()));
}

TEST(Nf4LinearTest, HasTheBitsOfLinear) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t rows : {1, 7, 16, 17, 130}) {
      CompareWithLinear(rows, 192, {64, 100, 36}, dtype);
    }
  }
}

// As many rows, or columns, as do not fit into a panel.
TEST(Nf4LinearTest, SeveralPanelsHaveTheBitsOfOne) {
  constexpr int64_t kRow = 64;
  const int64_t several = kNf4PanelBytes / (kRow * 4) + 3000;
  CompareWithLinear(20, kRow, {several / 2, several / 2 + 1}, DType::kF32);
  CompareWithLinear(3, kRow, {several}, DType::kF32);
  CompareWithLinear(20, several, {kRow - 10, 10}, DType::kF32);
}

}  // namespace
}  // namespace lockstep
