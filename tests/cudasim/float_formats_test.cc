// The 16-bit and 8-bit floats, against independent arithmetic, for every number where that is
// possible; nvidia/dump_formats.cc is compared with NVIDIA's headers, if there is a toolkit.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
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
double E4m3Value(uint32_t bits) {
  const int exponent = static_cast<int>(bits >> 3), mantissa = static_cast<int>(bits & 7);
  return exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
}
double E5m2Value(uint32_t bits) {
  const int exponent = static_cast<int>(bits >> 2), mantissa = static_cast<int>(bits & 3);
  return exponent == 0 ? std::ldexp(mantissa, -16) : std::ldexp(4 + mantissa, exponent - 17);
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
    ASSERT_EQ(__half_as_ushort(__float2half(x)), expected) << x;
    ASSERT_EQ(cudasim::DoubleToHalf(x), expected) << x;
  });
  EXPECT_EQ(__half_as_ushort(__float2half(INFINITY)), 0x7c00);
  EXPECT_EQ(__half_as_ushort(__float2half(-NAN)), 0x7fff);
}

TEST(FloatFormatsTest, EveryHalfToFloat) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float x = __half2float(__ushort_as_half(static_cast<uint16_t>(bits)));
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
    ASSERT_EQ(__bfloat16_as_ushort(__float2bfloat16(x)), expected) << x;
    ASSERT_EQ(__bfloat16_as_ushort(__double2bfloat16(x)), expected) << x;
  });
  EXPECT_EQ(__bfloat16_as_ushort(__float2bfloat16(3.4e38f)), 0x7f80);
  EXPECT_EQ(__bfloat16_as_ushort(__float2bfloat16(-NAN)), 0x7fff);
  // A double between two floats, nearer to the upper bf16: rounded to a float first, it would be a
  // tie.
  const double x = 1.0 + 0x1p-8 + 0x1p-40;
  EXPECT_EQ(__bfloat16_as_ushort(__double2bfloat16(x)), 0x3f81);
  EXPECT_EQ(__bfloat16_as_ushort(__float2bfloat16(static_cast<float>(x))), 0x3f80);
}

TEST(FloatFormatsTest, TowardsZero) {
  EXPECT_EQ(__bfloat162float(__float2bfloat16_rz(1.999f)), 1.9921875f);
  EXPECT_EQ(__bfloat162float(__float2bfloat16_rz(-1.999f)), -1.9921875f);
  EXPECT_EQ(__half2float(__float2half_rz(65535.0f)), 65504.0f);
  EXPECT_EQ(__half2float(__float2half_rz(1.5f)), 1.5f);
}

TEST(FloatFormatsTest, Float8) {
  auto check = [](__nv_fp8_interpretation_t kind, uint32_t largest, auto value) {
    AroundEveryNumber(largest, value, [&](float x) {
      const uint32_t sign = std::signbit(x) ? 0x80u : 0u;
      const double half_above = value(largest) + (value(largest) - value(largest - 1)) / 2;
      const uint32_t saturated = NearestMagnitude(std::fabs(x), largest, value);
      ASSERT_EQ(__nv_cvt_float_to_fp8(x, __NV_SATFINITE, kind), sign | saturated) << x;
      // e4m3's largest has an even mantissa, e5m2's an odd one: a tie stays, or goes to infinity.
      const bool over = kind == __NV_E4M3 ? std::fabs(x) > half_above : std::fabs(x) >= half_above;
      const uint32_t beyond = kind == __NV_E4M3 ? 0x7f : 0x7c;
      ASSERT_EQ(__nv_cvt_float_to_fp8(x, __NV_NOSAT, kind), sign | (over ? beyond : saturated))
          << x;
    });
    for (float x : {1e6f, INFINITY}) {
      EXPECT_EQ(__nv_cvt_float_to_fp8(-x, __NV_SATFINITE, kind), 0x80 | largest);
    }
    for (uint32_t bits = 0; bits <= largest; ++bits) {
      const __half_raw raw =
          __nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(bits | 0x80), kind);
      EXPECT_EQ(cudasim::HalfToFloat(raw.x), -value(bits)) << bits;
    }
  };
  check(__NV_E4M3, 0x7e, E4m3Value);
  check(__NV_E5M2, 0x7b, E5m2Value);
  EXPECT_TRUE(std::isnan(static_cast<float>(__nv_fp8_e4m3(NAN))));
  EXPECT_TRUE(std::isnan(static_cast<float>(__nv_fp8_e5m2(NAN))));
  const float4 four = static_cast<float4>(__nv_fp8x4_e4m3(make_float4(1, -2, 3.3f, 1000)));
  EXPECT_EQ(four.x, 1);
  EXPECT_EQ(four.y, -2);
  EXPECT_EQ(four.z, 3.25f);
  EXPECT_EQ(four.w, 448);
}

// Rounded once: the exact sum, product and fused product fit the 64 bits of a long double.
TEST(FloatFormatsTest, ArithmeticIsRoundedOnce) {
  uint32_t state = 1;
  auto next = [&] {
    state = state * 1664525u + 1013904223u;
    return static_cast<uint16_t>((state >> 16 & 0x83ff) | ((state >> 8 & 15) + 8) << 10);
  };
  for (int i = 0; i < 200000; ++i) {
    const __half a = __ushort_as_half(next()), b = __ushort_as_half(next()),
                 c = __ushort_as_half(next());
    const long double x = a.ToFloat(), y = b.ToFloat(), z = c.ToFloat();
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
    ASSERT_EQ(__hadd(a, b).ToFloat(), round(x + y));
    ASSERT_EQ(__hsub(a, b).ToFloat(), round(x - y));
    ASSERT_EQ(__hmul(a, b).ToFloat(), round(x * y));
    ASSERT_EQ(__hfma(a, b, c).ToFloat(), round(x * y + z)) << i;
  }
}

TEST(FloatFormatsTest, ComparisonsAndPairs) {
  const __half nan = __ushort_as_half(0x7e00), one = __float2half(1), zero = __float2half(0),
               minus_zero = __float2half(-0.0f);
  EXPECT_FALSE(__hne(nan, one));
  EXPECT_TRUE(nan != one);
  EXPECT_FALSE(nan == nan);
  EXPECT_EQ(__hmax(nan, one).ToFloat(), 1);
  EXPECT_TRUE(__hisnan(__hmax_nan(nan, one)));
  EXPECT_EQ(__half_as_ushort(__hmin(zero, minus_zero)), 0x8000);
  const __nv_bfloat162 pair = __floats2bfloat162_rn(1.5f, -2.0f);
  const float2 sum = __bfloat1622float2(__hfma2(pair, pair, pair));
  EXPECT_EQ(sum.x, 3.75f);
  EXPECT_EQ(sum.y, 2.0f);
  EXPECT_EQ(__low2float(-pair), -1.5f);
}

}  // namespace
}  // namespace lockstep
