// What the OpCase of linear does not see: rows that do not depend on each other.
#include "kernels/linear/linear.h"

#include <gtest/gtest.h>

#include <random>

#include "core/autograd.h"

namespace lockstep {
namespace {

Tensor Random(const Shape& shape, unsigned seed, DType dtype) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(shape.numel()));
  for (float& x : values) x = normal(random);
  return Tensor::FromVector(values, shape).To(dtype);
}

std::string Bytes(const Tensor& x) {
  const Tensor c = x.Contiguous();
  return {static_cast<const char*>(c.raw_data()), static_cast<size_t>(c.bytes())};
}

TEST(Linear, FewRowsHaveTheBitsThatTheyHaveAlone) {
  for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
    for (const auto& [k, n] : {std::pair(1, 1), std::pair(16, 7), std::pair(33, 130),
                               std::pair(100, 64), std::pair(768, 300)}) {
      const Tensor x = Random({kFewRows, k}, 1, dtype), weight = Random({n, k}, 2, dtype);
      const Tensor bias = Random({n}, 3, dtype);
      for (Activation activation : {Activation::kNone, Activation::kGelu}) {
        for (int64_t rows : {int64_t{2}, int64_t{3}, int64_t{8}, kFewRows}) {
          const Tensor y = ops::Linear(x.Slice(0, 0, rows), weight, bias, activation);
          for (int64_t i = 0; i < rows; ++i) {
            ASSERT_EQ(Bytes(y.Slice(0, i, i + 1)),
                      Bytes(ops::Linear(x.Slice(0, i, i + 1), weight, bias, activation)))
                << dtype << " k " << k << " n " << n << " row " << i << " of " << rows;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
