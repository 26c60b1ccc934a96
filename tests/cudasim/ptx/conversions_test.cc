// cvt against its definition, in exact arithmetic.
#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "cudasim/float_formats.h"
#include "tests/cudasim/ptx/machine.h"

namespace cudasim::ptx {
namespace {

template <typename Float>
uint64_t Bits(Float x) {
  if constexpr (sizeof(Float) == 4) {
    return std::bit_cast<uint32_t>(x);
  } else {
    return std::bit_cast<uint64_t>(x);
  }
}

template <typename Float>
std::vector<Float> Interesting() {
  std::vector<Float> values = {0,
                               -0.0,
                               0.5,
                               -0.5,
                               1.5,
                               2.5,
                               -2.5,
                               0.49999,
                               1e10,
                               -1e10,
                               3e38,
                               -3e38,
                               127,
                               128,
                               -128.5,
                               255.5,
                               65535,
                               32768,
                               2147483647.0,
                               -2147483648.0,
                               4294967295.0,
                               9.2233720368547758e18,
                               -9.2233720368547758e18,
                               1.8446744073709552e19,
                               std::numeric_limits<Float>::infinity(),
                               -std::numeric_limits<Float>::infinity(),
                               std::numeric_limits<Float>::quiet_NaN()};
  std::mt19937 random(4);
  for (int j = 0; j < 300; ++j) {
    values.push_back(
        static_cast<Float>(std::ldexp(static_cast<double>(random()) - 2e9, j % 40 - 30)));
  }
  return values;
}

template <typename Float, typename Integer>
void CheckToInteger() {
  const std::string from = "f" + std::to_string(8 * sizeof(Float));
  const std::string to =
      (std::is_signed_v<Integer> ? "s" : "u") + std::to_string(8 * sizeof(Integer));
  const std::vector<Float> values = Interesting<Float>();
  std::vector<std::array<uint64_t, 3>> arguments;
  for (const Float x : values) arguments.push_back({Bits(x), 0, 0});
  for (const char* rounding : {"rni", "rzi", "rmi", "rpi"}) {
    const std::string opcode = std::string("cvt.") + rounding + "." + to + "." + from;
    const std::vector<uint64_t> results = RunOperation({opcode, to, {from}}, arguments);
    for (size_t j = 0; j < values.size(); ++j) {
      const double x = values[j];
      const double rounded = rounding[1] == 'n'   ? std::nearbyint(x)
                             : rounding[1] == 'z' ? std::trunc(x)
                             : rounding[1] == 'm' ? std::floor(x)
                                                  : std::ceil(x);
      using Limits = std::numeric_limits<Integer>;
      Integer expected;
      if (x != x) {
        const bool wide = sizeof(Float) == 8 || sizeof(Integer) == 8;
        expected = wide ? static_cast<Integer>(uint64_t{1} << (8 * sizeof(Integer) - 1)) : 0;
      } else if (rounded >= std::ldexp(1.0, Limits::digits)) {
        expected = Limits::max();
      } else if (rounded <= static_cast<double>(Limits::min())) {
        expected = Limits::min();
      } else {
        expected = static_cast<Integer>(rounded);
      }
      ASSERT_EQ(static_cast<Integer>(results[j]), expected) << opcode << " of " << x;
    }
  }
}

TEST(ConversionsTest, FloatsToIntegers) {
  CheckToInteger<float, int32_t>();
  CheckToInteger<float, uint32_t>();
  CheckToInteger<float, int64_t>();
  CheckToInteger<float, uint64_t>();
  CheckToInteger<float, int16_t>();
  CheckToInteger<double, int32_t>();
  CheckToInteger<double, uint32_t>();
  CheckToInteger<double, int64_t>();
  CheckToInteger<double, uint64_t>();
}

TEST(ConversionsTest, IntegersToFloatsRoundAsAsked) {
  const uint64_t x = (uint64_t{1} << 24) + 1;  // between two values of f32
  const auto convert = [](const std::string& opcode, uint64_t bits) {
    return std::bit_cast<float>(
        static_cast<uint32_t>(RunOperation({opcode, "f32", {"s64"}}, {{bits}})[0]));
  };
  EXPECT_EQ(convert("cvt.rn.f32.s64", x), 0x1p24f);
  EXPECT_EQ(convert("cvt.rp.f32.s64", x), 0x1p24f + 2);
  EXPECT_EQ(convert("cvt.rz.f32.s64", 0 - x), -0x1p24f);
  EXPECT_EQ(convert("cvt.rm.f32.s64", 0 - x), -0x1p24f - 2);
  EXPECT_EQ(convert("cvt.rn.f32.u64", ~uint64_t{0}), 0x1p64f);
  EXPECT_EQ(convert("cvt.rz.f32.u64", ~uint64_t{0}), std::nextafter(0x1p64f, 0.0f));
}

TEST(ConversionsTest, IntegersToIntegers) {
  const auto convert = [](const std::string& to, const std::string& from, const std::string& sat,
                          uint64_t x) {
    return RunOperation({"cvt." + sat + to + "." + from, to, {from}}, {{x}})[0];
  };
  EXPECT_EQ(convert("s64", "s32", "", 0xffffffff), ~uint64_t{0});
  EXPECT_EQ(convert("u64", "u32", "", 0xffffffff), 0xffffffffu);
  EXPECT_EQ(convert("u32", "s8", "", 0x80), 0xffffff80u);
  EXPECT_EQ(convert("u32", "u8", "", 0x180), 0x80u);
  EXPECT_EQ(convert("u16", "u32", "", 0x12345), 0x2345u);
  EXPECT_EQ(convert("s16", "s32", "sat.", 40000), 32767u);
  EXPECT_EQ(convert("s16", "s32", "sat.", 0xffff0000) & 0xffff, 0x8000u);
  EXPECT_EQ(convert("u8", "s32", "sat.", 300), 255u);
  EXPECT_EQ(convert("u8", "s32", "sat.", 0xffffffff), 0u);
  EXPECT_EQ(convert("s32", "u32", "sat.", 0xffffffff), 0x7fffffffu);
}

TEST(ConversionsTest, EveryHalf) {
  std::vector<std::array<uint64_t, 3>> arguments;
  for (uint64_t h = 0; h < 65536; ++h) arguments.push_back({h, 0, 0});
  const std::vector<uint64_t> halves = RunOperation({"cvt.f32.f16", "f32", {"f16"}}, arguments);
  const std::vector<uint64_t> bfloats = RunOperation({"cvt.f32.bf16", "f32", {"bf16"}}, arguments);
  for (uint32_t h = 0; h < 65536; ++h) {
    const float expected = HalfToFloatPortably(static_cast<uint16_t>(h));
    const auto want = expected == expected ? std::bit_cast<uint32_t>(expected) : 0x7fffffffu;
    ASSERT_EQ(halves[h], want) << h;
    const float bfloat = std::bit_cast<float>(h << 16);
    ASSERT_EQ(bfloats[h], bfloat == bfloat ? h << 16 : 0x7fffffffu) << h;
  }
}

TEST(ConversionsTest, FloatsToSmallFloats) {
  std::vector<std::array<uint64_t, 3>> arguments;
  std::mt19937 random(5);
  for (int j = 0; j < 4000; ++j) {
    const float x =
        std::ldexp(static_cast<float>(random()) - 2e9f, static_cast<int>(random() % 60) - 62);
    arguments.push_back({std::bit_cast<uint32_t>(x), random(), 0});
  }
  arguments.push_back({0x7f800000, 0x7fc00000, 0});
  arguments.push_back({0x7f812345, 0x477ff000, 0});
  const auto check = [&](const std::string& opcode, const std::string& to, auto expected) {
    const std::vector<uint64_t> results = RunOperation({opcode, to, {"f32"}}, arguments);
    for (size_t j = 0; j < results.size(); ++j) {
      const float x = std::bit_cast<float>(static_cast<uint32_t>(arguments[j][0]));
      ASSERT_EQ(results[j], expected(x)) << opcode << " of " << x;
    }
  };
  check("cvt.rn.f16.f32", "f16", [](float x) { return DoubleToHalf(x); });
  check("cvt.rn.bf16.f32", "bf16", [](float x) { return DoubleToBf16(x); });
  const std::vector<uint64_t> pairs =
      RunOperation({"cvt.rn.bf16x2.f32", "b32", {"f32", "f32"}}, arguments);
  for (size_t j = 0; j < pairs.size(); ++j) {
    const float a = std::bit_cast<float>(static_cast<uint32_t>(arguments[j][0]));
    const float b = std::bit_cast<float>(static_cast<uint32_t>(arguments[j][1]));
    ASSERT_EQ(pairs[j], uint32_t{DoubleToBf16(a)} << 16 | DoubleToBf16(b));
  }
}

TEST(ConversionsTest, FloatsWithinTheirType) {
  const auto convert = [](const std::string& opcode, float x) {
    return std::bit_cast<float>(static_cast<uint32_t>(
        RunOperation({opcode, "f32", {"f32"}}, {{std::bit_cast<uint32_t>(x)}})[0]));
  };
  EXPECT_EQ(convert("cvt.rni.f32.f32", 2.5f), 2.0f);
  EXPECT_EQ(convert("cvt.rmi.f32.f32", -2.5f), -3.0f);
  EXPECT_EQ(convert("cvt.rpi.f32.f32", 2.1f), 3.0f);
  EXPECT_EQ(convert("cvt.rzi.f32.f32", -2.9f), -2.0f);
  EXPECT_EQ(convert("cvt.sat.f32.f32", 2.1f), 1.0f);
  EXPECT_EQ(convert("cvt.rna.tf32.f32", 1.0f + 0x1p-11f), 1.0f + 0x1p-10f);
  EXPECT_EQ(convert("cvt.rna.tf32.f32", 1.0f + 0x1p-12f), 1.0f);
}

}  // namespace
}  // namespace cudasim::ptx
