// The simulator's 16-bit floats, against independent arithmetic, for every number where that is
// possible.
#include "cudasim/float_formats.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

namespace lockstep {
namespace {

// Finite numbers of a format are in the order of their bits: searches for the one nearest to x,
// with ties to the even bits.
template <class ToDouble>
uint32_t NearestMagnitude(double x, uint32_t largest, const ToDouble& value) {
  uint32_t low = 0, high = largest;
  while (low < high) {  // the first that is not below x
    const uint32_t middle = (low + high) / 2;
    if (value(middle) < x) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (low == 0) return 0;
  const double above = value(low) - x, below = x - value(low - 1);
  if (above != below) return above < below ? low : low - 1;
  return low % 2 == 0 ? low : low - 1;
}

double Bf16Value(uint32_t bits) { return cudasim::Bf16ToFloat(static_cast<uint16_t>(bits)); }
double HalfValue(uint32_t bits) {
  const int exponent = static_cast<int>(bits >> 10), mantissa = static_cast<int>(bits & 1023);
  return exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
}
// Numbers that are at, between and just beside those of a format.
template <class Value, class Check>
void AroundEveryNumber(uint32_t largest, const Value& value, const Check& check) {
  for (uint32_t bits = 0; bits <= largest; ++bits) {
    const double here = value(bits);
    const double next = bits == largest ? here * 1.01 : value(bits + 1);
    for (double x :
         {here, (here + next) / 2, here + (next - here) / 4, here + (next - here) * 0.75}) {
      const auto rounded = static_cast<float>(x);
      for (float y : {rounded, std::nextafter(rounded, 0.0f), std::nextafter(rounded, INFINITY)}) {
        check(y);
        check(-y);
      }
    }
  }
}

TEST(FloatFormatsTest, HalfFromFloat) {
  AroundEveryNumber(0x7bff, HalfValue, [](float x) {
    const uint32_t magnitude =
        std::fabs(x) >= 65520 ? 0x7c00u : NearestMagnitude(std::fabs(x), 0x7bff, HalfValue);
    const uint32_t expected = (std::signbit(x) ? 0x8000u : 0u) | magnitude;
    ASSERT_EQ(cudasim::FloatToHalf(x), expected) << x;
    ASSERT_EQ(cudasim::DoubleToHalf(x), expected) << x;
  });
  EXPECT_EQ(cudasim::FloatToHalf(INFINITY), 0x7c00);
  EXPECT_EQ(cudasim::FloatToHalf(-NAN), 0x7fff);
}

TEST(FloatFormatsTest, EveryHalfToFloat) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float x = cudasim::HalfToFloat(static_cast<uint16_t>(bits));
    const float portable = cudasim::HalfToFloatPortably(static_cast<uint16_t>(bits));
    if ((bits & 0x7fff) > 0x7c00) {
      ASSERT_TRUE(std::isnan(x) && std::isnan(portable)) << bits;
    } else if ((bits & 0x7fff) == 0x7c00) {
      ASSERT_TRUE(std::isinf(x) && std::signbit(x) == (bits > 0x8000));
      ASSERT_EQ(x, portable);
    } else {
      ASSERT_EQ(std::fabs(x), HalfValue(bits & 0x7fff)) << bits;
      ASSERT_EQ(std::signbit(x), bits >= 0x8000) << bits;
      ASSERT_EQ(x, portable);
    }
  }
}

TEST(FloatFormatsTest, Bf16FromFloatAndDouble) {
  AroundEveryNumber(0x7f7e, Bf16Value, [](float x) {
    const double half_above = 0x1.ffp127;  // between the largest and what would follow
    const uint32_t magnitude =
        std::fabs(x) >= half_above ? 0x7f80u : NearestMagnitude(std::fabs(x), 0x7f7f, Bf16Value);
    const uint32_t expected = (std::signbit(x) ? 0x8000u : 0u) | magnitude;
    ASSERT_EQ(cudasim::FloatToBf16(x), expected) << x;
    ASSERT_EQ(cudasim::DoubleToBf16(x), expected) << x;
  });
  EXPECT_EQ(cudasim::FloatToBf16(3.4e38f), 0x7f80);
  EXPECT_EQ(cudasim::FloatToBf16(-NAN), 0x7fff);
  // A double between two floats, nearer to the upper bf16: rounded to a float first, it would be a
  // tie.
  const double x = 1.0 + 0x1p-8 + 0x1p-40;
  EXPECT_EQ(cudasim::DoubleToBf16(x), 0x3f81);
  EXPECT_EQ(cudasim::FloatToBf16(static_cast<float>(x)), 0x3f80);
}

// The exact fused product fits the 64 bits of a long double.
TEST(FloatFormatsTest, AFusedProductIsRoundedOnce) {
  using cudasim::HalfToFloat;
  uint32_t state = 1;
  auto next = [&] {
    state = state * 1664525u + 1013904223u;
    return static_cast<uint16_t>((state >> 16 & 0x83ff) | ((state >> 8 & 15) + 8) << 10);
  };
  for (int i = 0; i < 200000; ++i) {
    const double x = HalfToFloat(next()), y = HalfToFloat(next()), z = HalfToFloat(next());
    auto round = [](long double exact) {
      // Values stay within f16's range, and are exact in long double.
      uint32_t low = 0, high = 0x7c00;
      const long double magnitude = std::fabs(exact);
      while (low < high) {
        const uint32_t middle = (low + high) / 2;
        if (HalfValue(middle) < magnitude) {
          low = middle + 1;
        } else {
          high = middle;
        }
      }
      if (low == 0) return 0.0;
      const long double above = HalfValue(low) - magnitude, below = magnitude - HalfValue(low - 1);
      const uint32_t bits = above < below || (above == below && low % 2 == 0) ? low : low - 1;
      return bits == 0x7c00 ? std::copysign(INFINITY, static_cast<double>(exact))
                            : std::copysign(HalfValue(bits), static_cast<double>(exact));
    };
    const uint16_t bits = cudasim::DoubleToHalf(cudasim::MultiplyAddToOdd(x, y, z));
    const long double exact = static_cast<long double>(x) * y + z;
    ASSERT_EQ(static_cast<double>(HalfToFloat(bits)), round(exact)) << i;
  }
}

}  // namespace
}  // namespace lockstep
