#include "dist/content_hash.h"

#include <gtest/gtest.h>

#include <set>

#include "core/thread_pool.h"

namespace lockstep::dist {
namespace {

std::vector<std::byte> Bytes(size_t n) {
  std::vector<std::byte> bytes(n);
  for (size_t i = 0; i < n; ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 251);
  return bytes;
}

// Every single bit counts, at every length.
TEST(ContentHash, AFlippedBitIsNoticed) {
  for (size_t n = 1; n < 100; ++n) {
    std::vector<std::byte> bytes = Bytes(n);
    std::set<uint64_t> hashes = {HashBytes(bytes)};
    for (size_t bit = 0; bit < 8 * n; ++bit) {
      bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
      EXPECT_TRUE(hashes.insert(HashBytes(bytes)).second) << "bit " << bit << " of " << n;
      bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    }
  }
}

TEST(ContentHash, ZerosOfDifferentLengthsDiffer) {
  std::set<uint64_t> hashes;
  for (size_t n = 0; n < 200; ++n) hashes.insert(HashBytes(std::vector<std::byte>(n)));
  EXPECT_EQ(hashes.size(), 200u);
  EXPECT_NE(HashBytes({}, 1), HashBytes({}, 2));
}

TEST(ContentHash, DoesNotDependOnThreads) {
  const std::vector<std::byte> bytes = Bytes((3 << 20) + 12345);
  const int before = NumThreads();
  std::set<uint64_t> hashes;
  for (const int n : {1, 2, 3}) {
    SetNumThreads(n);
    hashes.insert(HashBytes(bytes));
  }
  SetNumThreads(before);
  EXPECT_EQ(hashes.size(), 1u);
  std::vector<std::byte> swapped = bytes;  // whole chunks
  std::swap_ranges(swapped.begin(), swapped.begin() + (1 << 20), swapped.begin() + (1 << 20));
  EXPECT_NE(HashBytes(swapped), *hashes.begin());
}

TEST(ContentHash, ATensorIsItsTypeShapeAndElements) {
  const Tensor x = Tensor::FromVector<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  EXPECT_EQ(HashTensor(x), HashTensor(x.Clone()));
  EXPECT_NE(HashTensor(x), HashTensor(x.View({3, 2})));
  EXPECT_NE(HashTensor(x), HashTensor(x.To(DType::kF64)));
  EXPECT_EQ(HashTensor(x.Transpose(0, 1)), HashTensor(x.Transpose(0, 1).Contiguous()));
  EXPECT_EQ(HashTensor(Tensor()), 0u);
  EXPECT_NE(HashTensor(Tensor::Full({}, 0.0, DType::kF32)),
            HashTensor(Tensor::Full({}, -0.0, DType::kF32)));
}

TEST(ContentHash, CombiningKeepsTheOrder) {
  EXPECT_NE(HashCombine(1, 2), HashCombine(2, 1));
  EXPECT_NE(HashCombine(0, 0), 0u);
}

}  // namespace
}  // namespace lockstep::dist
