#include "core/philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace lockstep {
namespace {

// From kat_vectors of the Random123 distribution, "philox4x32 10": counter (4 words), key (2
// words).
TEST(PhiloxTest, KnownAnswers) {
  struct Vector {
    uint32_t counter[4], key[2], want[4];
  };
  const Vector vectors[] = {
      {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
       {0xffffffff, 0xffffffff},
       {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
       {0xa4093822, 0x299f31d0},
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}};
  for (const Vector& v : vectors) {
    const Philox philox(v.key[0] | uint64_t{v.key[1]} << 32);
    const Philox::Block block = philox(v.counter[2] | uint64_t{v.counter[3]} << 32,
                                       v.counter[0] | uint64_t{v.counter[1]} << 32);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(block.v[i], v.want[i]) << i;
  }
  // It also works at compile time.
  static_assert(Philox(0)(0, 0).v[0] == 0x6627e8d5);
}

TEST(PhiloxTest, ElementsAreTheWordsOfConsecutiveBlocks) {
  const Philox philox(42);
  for (uint64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(philox.At(7, i), philox(7, i / 4).v[i % 4]);
  }
  EXPECT_NE(philox.At(7, 0), philox.At(8, 0));
  EXPECT_NE(philox.At(7, 0), Philox(43).At(7, 0));
}

TEST(PhiloxTest, UniformIsBelowOneAndEven) {
  EXPECT_EQ(ToUniform(0), 0.0f);
  EXPECT_EQ(ToUniform(0xffffffff), 1.0f - 0x1p-24f);
  EXPECT_EQ(ToUniform(0x80000000), 0.5f);
  const Philox philox(3);
  constexpr int kDraws = 1 << 18, kBins = 64;
  std::vector<int> bins(kBins);
  for (int i = 0; i < kDraws; ++i) ++bins[static_cast<int>(ToUniform(philox.At(1, i)) * kBins)];
  double chi_squared = 0;
  for (const int n : bins) {
    chi_squared += std::pow(n - kDraws / kBins, 2) / (static_cast<double>(kDraws) / kBins);
  }
  EXPECT_LT(chi_squared, 63 + 4 * std::sqrt(2.0 * 63));  // 4 standard deviations above its mean
  EXPECT_GT(chi_squared, 63 - 4 * std::sqrt(2.0 * 63));
}

// The reference vectors of FNV-1a, 64 bits (draft-eastlake-fnv, appendix C).
TEST(PhiloxTest, HashNameIsFnv1a) {
  EXPECT_EQ(HashName(""), 0xcbf29ce484222325ull);
  EXPECT_EQ(HashName("a"), 0xaf63dc4c8601ec8cull);
  EXPECT_EQ(HashName("foobar"), 0x85944171f73967e8ull);
  EXPECT_EQ(HashName("foobar", 3), HashName("foo"));
}

}  // namespace
}  // namespace lockstep
