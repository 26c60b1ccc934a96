// What kernels/torch_differences.md writes in place of functions that only torch has, against
// their definitions.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "core/io/file.h"
#include "lockstep/lockstep.h"

namespace lockstep {
namespace {

using Values = std::vector<double>;

// The expression as it is written, and its value.
#define LS_WRITTEN(...) #__VA_ARGS__, __VA_ARGS__

void Expect(const std::string& code, const Tensor& value, const Values& want) {
  static const std::string page = ReadFile("kernels/torch_differences.md");
  EXPECT_NE(page.find("| `" + code + "` |"), std::string::npos) << "the page lacks " << code;
  const Values got = value.To(DType::kF64).ToVector<double>();
  ASSERT_EQ(got.size(), want.size()) << code;
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-12) << code;
}

Tensor Matrix(const Values& values) { return Tensor::FromVector(values, {2, 3}); }

TEST(TorchMissing, LossesAndElements) {
  const Values a = {0.5, -1, 2, 0.25, 3, -2}, b = {0.75, 1, 2.5, 0.125, -1, 0.5};
  const Tensor x = Matrix(a), y = Matrix(b), labels = Tensor::FromVector<int64_t>({2, 0}, {2});
  const double e = 0.1, d = 1.5;
  double smooth = 0, huber = 0;
  for (int row = 0; row < 2; ++row) {
    double total = 0;
    for (int i = 0; i < 3; ++i) total += std::exp(a[row * 3 + i]);
    for (int i = 0; i < 3; ++i) {
      const double share = (i == (row == 0 ? 2 : 0) ? 1 - e : 0) + e / 3;
      smooth += share * (std::log(total) - a[row * 3 + i]) / 2;
      const double off = std::abs(a[row * 3 + i] - b[row * 3 + i]);
      huber += (off <= d ? off * off / 2 : d * (off - d / 2)) / 6;
    }
  }
  const Tensor logits = x;
  Expect(LS_WRITTEN((1 - e) * ops::SoftmaxCrossEntropy(logits, labels) -
                    e * ops::Mean(ops::LogSoftmax(logits))),
         {smooth});
  Expect(LS_WRITTEN(ops::Mean(ops::Where(ops::Abs(x - y) <= d, ops::Square(x - y) / 2,
                                         d * (ops::Abs(x - y) - d / 2)))),
         {huber});
  Expect(LS_WRITTEN(ops::IndexSelect(x, 1, ops::Arange(x.dim(1) - 1, -1, -1))),
         {2, -1, 0.5, -2, 3, 0.25});
  Expect(LS_WRITTEN(ops::Concat({x.Slice(0, -1, x.dim(0)), x.Slice(0, 0, -1)}, 0)),
         {0.25, 3, -2, 0.5, -1, 2});
  Expect(LS_WRITTEN(ops::All(ops::Abs(x - y) <= 1e-8 + 1e-5 * ops::Abs(y))), {0});
  EXPECT_EQ(ops::All(ops::Abs(x - x) <= 1e-8 + 1e-5 * ops::Abs(x)).Item(), 1);
  const double first = std::sqrt(5.25), second = std::sqrt(13.0625);
  Expect(LS_WRITTEN(x / ops::Norm(x, 2, 1, true)),
         {0.5 / first, -1 / first, 2 / first, 0.25 / second, 3 / second, -2 / second});
}

TEST(TorchMissing, Layers) {
  // Two channels of four elements, and two filters of two.
  const Tensor x = Tensor::FromVector<double>({1, 2, 4, 7, -1, 0, 3, 5}, {1, 2, 4});
  const Tensor weight = Tensor::FromVector<double>({1, -1, 2, 0.5, 0, 1, -1, 1}, {2, 2, 2});
  const Tensor bias = Tensor::FromVector<double>({10, 20}, {2});
  Expect(LS_WRITTEN(ops::Conv2d(x.Unsqueeze(2), weight.Unsqueeze(2), bias).Squeeze(2)),
         {10 - 1 - 2, 10 - 2 + 1.5, 10 - 3 + 8.5, 20 + 2 + 1, 20 + 4 + 3, 20 + 7 + 2});
  // One group: both channels together.
  const int64_t groups = 1;
  const Tensor ones = Tensor::Full({8}, 1, DType::kF64),
               scale = weight.Slice(0, 0, 1).Slice(2, 0, 1).Reshape({2});
  const Values v = x.ToVector<double>();
  double mean = 0, variance = 0;
  for (const double value : v) mean += value / 8;
  for (const double value : v) variance += (value - mean) * (value - mean) / 8;
  Values want;
  for (size_t i = 0; i < 8; ++i) {
    want.push_back((v[i] - mean) / std::sqrt(variance + 1e-5) * (i < 4 ? 1 : 2) +
                   (i < 4 ? 10 : 20));
  }
  Expect(LS_WRITTEN(ops::LayerNorm(x.View({x.dim(0), groups, -1}), ones).View(x.shape()) *
                        scale.View({-1, 1}) +
                    bias.View({-1, 1})),
         want);
}

TEST(TorchMissing, KeyPaddingMask) {
  const int64_t B = 2, T = 2;
  const Tensor q = Tensor::Zeros({B, 1, 1, 1}, DType::kF64),
               k = Tensor::Zeros({B, T, 1, 1}, DType::kF64);
  const Tensor v = Tensor::FromVector<double>({1, 3, 5, 9}, {B, T, 1, 1});
  const Tensor padding = Tensor::FromVector<bool>({false, true, false, false}, {B, T});
  Expect(LS_WRITTEN(ops::Attention(q, k, v, {.mask = (!padding).View({B, 1, 1, T})})), {1, 7});
}

}  // namespace
}  // namespace lockstep
