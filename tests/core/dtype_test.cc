#include "core/dtype.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "core/error.h"

namespace lockstep {
namespace {

// The value of a small float's bits, by the definition of the format.
long double Decode(uint32_t bits, int exponent_bits, int mantissa_bits) {
  const uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
  const int exponent = static_cast<int>(bits >> mantissa_bits & ((1u << exponent_bits) - 1));
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const long double sign = bits >> (exponent_bits + mantissa_bits) & 1 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa ? std::numeric_limits<long double>::quiet_NaN()
                    : sign * std::numeric_limits<long double>::infinity();
  }
  const long double fraction = std::ldexp(static_cast<long double>(mantissa), -mantissa_bits);
  return sign * (exponent == 0 ? std::ldexp(fraction, 1 - bias)
                               : std::ldexp(1 + fraction, exponent - bias));
}

// The format's value nearest to `value`, ties to even, as std::nearbyint rounds: exact in 80 bits.
long double Round(long double value, int exponent_bits, int mantissa_bits) {
  if (!std::isfinite(value) || value == 0) return value;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = std::max(std::ilogb(value), 1 - bias);
  const long double unit = std::ldexp(1.0L, exponent - mantissa_bits);
  const long double rounded = std::nearbyint(value / unit) * unit;
  const long double overflow = std::ldexp(1.0L, bias + 1);
  if (std::abs(rounded) >= overflow) return std::copysign(INFINITY, value);
  return rounded;
}

bool Same(long double a, long double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return a == b && std::signbit(a) == std::signbit(b);
}

template <class T>
struct Format;
template <>
struct Format<F16> {
  static constexpr int kExponent = 5, kMantissa = 10;
};
template <>
struct Format<BF16> {
  static constexpr int kExponent = 8, kMantissa = 7;
};

template <class T>
class HalfTest : public testing::Test {};
using HalfTypes = testing::Types<F16, BF16>;
TYPED_TEST_SUITE(HalfTest, HalfTypes);

TYPED_TEST(HalfTest, EveryPatternMeansWhatTheFormatSaysAndComesBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    TypeParam x;
    x.bits = static_cast<uint16_t>(bits);
    const long double want =
        Decode(bits, Format<TypeParam>::kExponent, Format<TypeParam>::kMantissa);
    const auto f = static_cast<float>(x);
    ASSERT_TRUE(Same(f, want)) << std::hex << bits << ": " << f << " instead of " << want;
    ASSERT_TRUE(Same(static_cast<double>(x), want)) << std::hex << bits;
    const TypeParam back(f);
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(static_cast<float>(back))) << std::hex << bits;
      ASSERT_EQ(back.bits >> 15, bits >> 15) << "the sign of a NaN";
    } else {
      ASSERT_EQ(back.bits, bits);
    }
  }
}

TYPED_TEST(HalfTest, RoundsToNearestEven) {
  const auto check = [](float value) {
    const TypeParam got(value);
    const long double want =
        Round(value, Format<TypeParam>::kExponent, Format<TypeParam>::kMantissa);
    ASSERT_TRUE(Same(static_cast<float>(got), want))
        << std::hexfloat << value << " became " << static_cast<float>(got) << ", not " << want;
  };
  // Around every value of the format: the value itself, the midpoint to the next one, and the
  // adjacent floats.
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    TypeParam low, high;
    low.bits = static_cast<uint16_t>(bits);
    high.bits = static_cast<uint16_t>(bits + 1);
    const auto a = static_cast<float>(low), b = static_cast<float>(high);
    if (!std::isfinite(a)) continue;
    const auto middle = static_cast<float>((static_cast<double>(a) + b) / 2);
    for (const float x : {a, middle}) {
      check(x);
      check(std::nextafterf(x, -INFINITY));
      check(std::nextafterf(x, INFINITY));
    }
  }
  std::mt19937 random(1);
  for (int i = 0; i < 2000000; ++i) check(std::bit_cast<float>(static_cast<uint32_t>(random())));
  for (const float x : {INFINITY, -INFINITY, NAN, -NAN, FLT_MAX, -FLT_MAX, FLT_MIN, 1e-45f, -1e-45f,
                        65504.0f, 65519.996f, 65520.0f, 0.0f, -0.0f}) {
    check(x);
  }
}

TEST(DTypeTest, NamesSizesAndParsing) {
  const std::vector<std::pair<std::string, int64_t>> want = {
      {"f64", 8}, {"f32", 4}, {"f16", 2}, {"bf16", 2}, {"f8e4m3", 1}, {"f8e5m2", 1},
      {"i64", 8}, {"i32", 4}, {"u16", 2}, {"u8", 1},   {"bool", 1}};
  ASSERT_EQ(want.size(), static_cast<size_t>(kNumDTypes));
  for (const auto& [name, size] : want) {
    const DType dtype = ParseDType(name);
    EXPECT_EQ(Name(dtype), name);
    EXPECT_EQ(SizeOf(dtype), size) << name;
    EXPECT_EQ(IsFloating(dtype), name[0] == 'f' || name == "bf16") << name;
    EXPECT_EQ(StrCat(dtype), name);
  }
  try {
    ParseDType("float32");
    FAIL();
  } catch (const ArgumentError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("unknown dtype 'float32'; use one of f64, f32,"));
  }
}

TEST(DTypeTest, TypesOfTheHost) {
  EXPECT_EQ(DTypeOf<float>, DType::kF32);
  EXPECT_EQ(DTypeOf<BF16>, DType::kBF16);
  EXPECT_EQ(DTypeOf<bool>, DType::kBool);
  EXPECT_TRUE((std::is_same_v<Acc<double>, double>));
  EXPECT_TRUE((std::is_same_v<Acc<BF16>, float>));
}

// Every number rounds to itself; what lies between two rounds to the nearer one, and the midpoint
// to the even one.
template <class F8>
void ExpectRoundsToNearest(const std::vector<float>& largest) {
  const auto value = [](int bits) {
    F8 x;
    x.bits = static_cast<uint8_t>(bits);
    return static_cast<float>(x);
  };
  int bits = 0;
  for (; bits < 0x7f && std::isfinite(value(bits)); ++bits) {
    ASSERT_EQ(F8(value(bits)).bits, bits);
    ASSERT_EQ(F8(-value(bits)).bits, bits | 0x80);
    if (!std::isfinite(value(bits + 1))) break;
    const float middle = (value(bits) + value(bits + 1)) / 2;
    ASSERT_LT(value(bits), middle);
    EXPECT_EQ(F8(middle).bits, bits + bits % 2);
    EXPECT_EQ(F8(std::nextafter(middle, 0.0f)).bits, bits);
    EXPECT_EQ(F8(std::nextafter(middle, INFINITY)).bits, bits + 1);
  }
  EXPECT_EQ(value(bits), largest[0]);
  EXPECT_EQ(value(F8(largest[1]).bits), largest[0]) << "just below what is too large";
  for (const float too_large : {largest[2], 1e30f, INFINITY}) {
    EXPECT_EQ(F8(too_large).bits, bits + 1);
    EXPECT_EQ(F8(-too_large).bits, (bits + 1) | 0x80);
    EXPECT_FALSE(std::isfinite(value(bits + 1)));
  }
  EXPECT_TRUE(std::isnan(static_cast<float>(F8(NAN))));
  EXPECT_EQ(F8(1e-30f).bits, 0);
  EXPECT_EQ(F8(-0.0f).bits, 0x80);
}

TEST(DTypeTest, EightBitFloatsRoundToNearest) {
  // The largest number, what rounds to it, and what does not.
  ExpectRoundsToNearest<F8E4M3>({448, 463.9f, 464.1f});
  ExpectRoundsToNearest<F8E5M2>({57344, 61439, 61441});
  EXPECT_EQ(static_cast<float>(F8E4M3(1.0f)), 1);
  EXPECT_EQ(F8E4M3(1.0f).bits, 0x38);
  EXPECT_EQ(F8E5M2(1.0f).bits, 0x3c);
  EXPECT_TRUE(std::isinf(static_cast<float>(F8E5M2(1e30f))));
  EXPECT_TRUE(std::isnan(static_cast<float>(F8E4M3(1e30f))));
}

}  // namespace
}  // namespace lockstep
