#include "dist/groups/float_packing.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/philox.h"
#include "core/tensor.h"
#include "tests/message_of.h"

namespace lockstep::dist {
namespace {

using Bytes = std::vector<std::byte>;

Bytes BytesOf(const Tensor& t) {
  const auto* const data = static_cast<const std::byte*>(t.raw_data());
  return {data, data + t.bytes()};
}

// In memory of exactly the bound, which is full of other bytes, as a message's is.
int64_t ExpectRoundTrip(DType dtype, const Bytes& elements) {
  const int64_t n = std::ssize(elements) / SizeOf(dtype);
  Bytes packed(PackedBound(dtype, n), std::byte{0xa5}), back(elements.size(), std::byte{0x5a});
  const int64_t size = PackFloats(dtype, elements.data(), n, packed.data());
  EXPECT_LE(size, std::ssize(packed));
  std::fill(packed.begin() + size, packed.end(), std::byte{0xff});
  UnpackFloats(dtype, packed.data(), n, back.data());
  EXPECT_TRUE(back == elements) << n << " elements of " << dtype;
  return size;
}

// Normally distributed.
Tensor Normal(int64_t n, double scale) {
  const Philox random(3);
  Tensor t = Tensor::Empty({n}, DType::kF32);
  for (int64_t i = 0; i < n; ++i) {
    double sum = -6;
    for (uint64_t j = 0; j < 12; ++j) {
      sum += static_cast<double>(random.At(static_cast<uint64_t>(i), j)) * 0x1p-32;
    }
    t.data<float>()[i] = static_cast<float>(scale * sum);
  }
  return t;
}

class FloatPacking : public testing::TestWithParam<DType> {
 protected:
  Bytes As(const Tensor& t) const { return BytesOf(t.To(GetParam())); }
};
INSTANTIATE_TEST_SUITE_P(DTypes, FloatPacking, testing::Values(DType::kF32, DType::kBF16));

TEST_P(FloatPacking, NumbersOfSimilarSizesTakeLess) {
  const double expected = GetParam() == DType::kF32 ? 0.86 : 0.72;
  for (const double scale : {1e-30, 1e-4, 1.0, 1e30}) {
    const Bytes elements = As(Normal(64 * 100, scale));
    EXPECT_LT(ExpectRoundTrip(GetParam(), elements), expected * std::size(elements)) << scale;
  }
}

TEST_P(FloatPacking, ZerosTakeHardlyAnything) {
  const Bytes zeros(640 * SizeOf(GetParam()));
  EXPECT_EQ(ExpectRoundTrip(GetParam(), zeros), 20);
}

TEST_P(FloatPacking, EveryNumberOfElementsComesBack) {
  const Bytes all = As(Normal(200, 1));
  for (size_t bytes = 0; bytes <= all.size(); bytes += SizeOf(GetParam())) {
    ExpectRoundTrip(GetParam(), {all.begin(), all.begin() + static_cast<int64_t>(bytes)});
  }
}

// Infinities, NaNs with their bits, both zeros, the smallest and largest numbers, each between
// ordinary ones and by itself.
TEST_P(FloatPacking, SpecialValuesKeepTheirBits) {
  std::vector<uint32_t> special = {0x00000000, 0x80000000, 0x7f800000, 0xff800000,
                                   0x7fc00000, 0xffc12345, 0x7f810000, 0x00010000,
                                   0x80010000, 0x00800000, 0x7f7f0000, 0xff7fffff};
  for (size_t ordinary = 0; ordinary < 64; ordinary += 9) {
    for (const uint32_t bits : special) {
      Tensor t = Normal(64, 0.01);
      for (size_t i = ordinary; i < 64; ++i) std::memcpy(t.data<float>() + i, &bits, 4);
      Bytes elements = BytesOf(t);
      if (GetParam() == DType::kBF16) {
        // The upper halves, as bits: a conversion would make NaNs quiet.
        for (size_t i = 0; i < 64; ++i) std::memcpy(&elements[2 * i], &elements[4 * i + 2], 2);
        elements.resize(128);
      }
      ExpectRoundTrip(GetParam(), elements);
    }
  }
}

// Whatever the bits are, also where nothing can be packed; and whatever is unpacked, no byte beyond
// the bound is read (AddressSanitizer looks).
TEST_P(FloatPacking, RandomBitsComeBackWithinTheBound) {
  const Philox random(4);
  for (uint64_t trial = 0; trial < 200; ++trial) {
    Bytes bits(SizeOf(GetParam()) * (random.At(trial, 0) % 300));
    // From all exponents to two of them.
    const auto mask = static_cast<std::byte>(0xff >> trial % 8);
    for (size_t i = 0; i < bits.size(); ++i) {
      bits[i] = static_cast<std::byte>(random.At(trial, i + 1)) & mask;
    }
    ExpectRoundTrip(GetParam(), bits);
    const int64_t n = std::ssize(bits) / SizeOf(GetParam());
    Bytes noise(PackedBound(GetParam(), n)), back(bits.size());
    for (size_t i = 0; i < noise.size(); ++i) {
      noise[i] = static_cast<std::byte>(random.At(trial, 1000 + i)) | std::byte{0x80};
    }
    UnpackFloats(GetParam(), noise.data(), n, back.data());
  }
}

TEST(FloatPackingTest, OtherDTypesAreRefused) {
  EXPECT_FALSE(CanPack(DType::kF16));
  EXPECT_FALSE(CanPack(DType::kI32));
  EXPECT_THAT(test::MessageOf([] { PackedBound(DType::kF16, 1); }),
              testing::HasSubstr("only f32 and bf16"));
}

}  // namespace
}  // namespace lockstep::dist
