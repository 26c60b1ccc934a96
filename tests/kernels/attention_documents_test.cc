// Documents that are packed into one row attend as if each had a row of its own, to the bit.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "core/autograd/engine.h"
#include "core/philox.h"
#include "kernels/attention/attention.h"

namespace lockstep {
namespace {

constexpr int64_t kHeads = 4, kKeyHeads = 2;

struct Case {
  int64_t d = 8;
  int64_t window = 0;
  double softcap = 0;
  DType dtype = DType::kF32;
};

Tensor Values(const Shape& shape, uint64_t stream, DType dtype) {
  const Philox random(17);
  std::vector<double> values(static_cast<size_t>(shape.numel()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = ToUniform(random.At(stream, i)) * 4 - 2;
  }
  return Tensor::FromVector(values, shape).To(dtype);
}

// y and the gradient of qkv [B, T, (H + 2 G) D].
std::vector<Tensor> Attend(const Case& c, const Tensor& values, const Tensor& dy,
                           const Tensor& first_key) {
  Tensor qkv = values.Contiguous();
  qkv.SetRequiresGrad();
  const Tensor y = ops::CausalAttention(
      qkv, kHeads, kKeyHeads, {.softcap = c.softcap, .window = c.window, .first_key = first_key});
  Backward(y, dy.Contiguous());
  return {y.Detach(), qkv.grad()};
}

std::vector<std::byte> Bytes(const Tensor& x) {
  const Tensor dense = x.Contiguous();
  const auto* begin = static_cast<const std::byte*>(dense.raw_data());
  return {begin, begin + dense.bytes()};
}

class AttentionDocuments : public testing::TestWithParam<Case> {};

// The lengths begin documents at all places of a tile of 64 keys, and end them on both sides of
// its border and of two tiles'.
TEST_P(AttentionDocuments, HaveTheBitsOfSeparateRows) {
  const Case& c = GetParam();
  const std::vector<std::vector<int64_t>> rows = {{1, 5, 64, 65, 63, 130, 3, 1, 200},
                                                  {200, 128, 2, 61, 66, 9, 66}};
  constexpr int64_t kLength = 532;
  const Tensor qkv = Values({2, kLength, (kHeads + 2 * kKeyHeads) * c.d}, 1, c.dtype);
  const Tensor dy = Values({2, kLength, kHeads * c.d}, 2, c.dtype);
  std::vector<int32_t> first_key;
  for (const std::vector<int64_t>& lengths : rows) {
    int64_t begin = 0;
    for (const int64_t length : lengths) {
      first_key.insert(first_key.end(), static_cast<size_t>(length), static_cast<int32_t>(begin));
      begin += length;
    }
    ASSERT_EQ(begin, kLength);
  }
  const std::vector<Tensor> packed =
      Attend(c, qkv, dy, Tensor::FromVector(first_key, {2, kLength}, kCpu));
  for (size_t row = 0; row < rows.size(); ++row) {
    int64_t begin = 0;
    for (const int64_t length : rows[row]) {
      const auto document = [&](const Tensor& x) {
        return x.Slice(0, static_cast<int64_t>(row), static_cast<int64_t>(row) + 1)
            .Slice(1, begin, begin + length);
      };
      const std::vector<Tensor> alone = Attend(c, document(qkv), document(dy), {});
      for (size_t i = 0; i < alone.size(); ++i) {
        EXPECT_EQ(Bytes(document(packed[i])), Bytes(alone[i]))
            << (i == 0 ? "y" : "the gradient") << " of " << length << " tokens from " << begin
            << " on in row " << row;
      }
      begin += length;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, AttentionDocuments,
                         testing::Values(Case{}, Case{.d = 5}, Case{.d = 64, .window = 20},
                                         Case{.window = 100}, Case{.d = 16, .softcap = 1.5},
                                         Case{.window = 64, .softcap = 3, .dtype = DType::kBF16},
                                         Case{.d = 12, .window = 70, .dtype = DType::kF64}));

}  // namespace
}  // namespace lockstep
