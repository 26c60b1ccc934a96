// Each operation of integers and floating-point numbers against the host, in exact arithmetic.
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "tests/cudasim/ptx/machine.h"

namespace cudasim::ptx {
namespace {

using Wide = __int128;
using Arguments = std::vector<std::array<uint64_t, 3>>;

// Values near the limits, and random ones.
template <typename T>
Arguments Integers() {
  std::vector<T> values = {0,
                           1,
                           2,
                           3,
                           7,
                           31,
                           32,
                           33,
                           100,
                           std::numeric_limits<T>::max(),
                           static_cast<T>(std::numeric_limits<T>::max() - 1),
                           std::numeric_limits<T>::min(),
                           static_cast<T>(std::numeric_limits<T>::min() + 1),
                           static_cast<T>(-1),
                           static_cast<T>(-7)};
  std::mt19937_64 random(1);
  for (int j = 0; j < 6; ++j) values.push_back(static_cast<T>(random()));
  for (int j = 0; j < 4; ++j) values.push_back(static_cast<T>(random() % 1000));
  Arguments all;
  for (const T a : values) {
    for (const T b : values) {
      const T c = values[random() % values.size()];
      all.push_back({static_cast<uint64_t>(a), static_cast<uint64_t>(b), static_cast<uint64_t>(c)});
    }
  }
  return all;
}

template <typename T, typename R = T>
void Check(const std::string& opcode, int count, std::function<Wide(Wide, Wide, Wide)> expected,
           std::function<bool(T, T)> defined = nullptr) {
  const bool is_signed = std::is_signed_v<T>;
  const std::string bits = std::to_string(8 * sizeof(T));
  const std::string type = (is_signed ? "s" : "u") + bits;
  OperationCase operation{opcode + "." + type, "b" + std::to_string(8 * sizeof(R)),
                          std::vector<std::string>(count, "b" + bits)};
  if (count == 3) operation.arguments[2] = operation.result;
  const Arguments arguments = Integers<T>();
  const std::vector<uint64_t> results = RunOperation(operation, arguments);
  for (size_t j = 0; j < results.size(); ++j) {
    const T a = static_cast<T>(arguments[j][0]), b = static_cast<T>(arguments[j][1]);
    if (defined != nullptr && !defined(a, b)) continue;
    const R c = static_cast<R>(arguments[j][2]);
    ASSERT_EQ(static_cast<R>(results[j]), static_cast<R>(expected(a, b, c)))
        << operation.opcode << " of " << +a << ", " << +b << ", " << +c;
  }
}

template <typename T>
void CheckInteger() {
  const int kBits = 8 * sizeof(T);
  Check<T>("add", 2, [](Wide a, Wide b, Wide) { return a + b; });
  Check<T>("sub", 2, [](Wide a, Wide b, Wide) { return a - b; });
  // The lower 128 bits of a product are the same with and without signs.
  const auto product = [](Wide a, Wide b) {
    return static_cast<unsigned __int128>(a) * static_cast<unsigned __int128>(b);
  };
  Check<T>("mul.lo", 2, [=](Wide a, Wide b, Wide) { return static_cast<Wide>(product(a, b)); });
  Check<T>("mul.hi", 2,
           [=](Wide a, Wide b, Wide) { return static_cast<Wide>(product(a, b) >> kBits); });
  Check<T>("mad.lo", 3,
           [=](Wide a, Wide b, Wide c) { return static_cast<Wide>(product(a, b)) + c; });
  const auto no_overflow = [](T a, T b) {
    return b != 0 && !(std::is_signed_v<T> && a == std::numeric_limits<T>::min() && b == T(-1));
  };
  Check<T>(
      "div", 2, [](Wide a, Wide b, Wide) { return a / b; }, no_overflow);
  Check<T>(
      "rem", 2, [](Wide a, Wide b, Wide) { return a % b; }, no_overflow);
  Check<T>("min", 2, [](Wide a, Wide b, Wide) { return a < b ? a : b; });
  Check<T>("max", 2, [](Wide a, Wide b, Wide) { return a > b ? a : b; });
  if constexpr (std::is_signed_v<T>) {
    Check<T>("neg", 1, [](Wide a, Wide, Wide) { return -a; });
    Check<T>("abs", 1, [](Wide a, Wide, Wide) { return a < 0 ? -a : a; });
  }
}

TEST(ArithmeticTest, Integers) {
  CheckInteger<int16_t>();
  CheckInteger<uint16_t>();
  CheckInteger<int32_t>();
  CheckInteger<uint32_t>();
  CheckInteger<int64_t>();
  CheckInteger<uint64_t>();
}

TEST(ArithmeticTest, WideProducts) {
  const auto product = [](Wide a, Wide b, Wide) { return a * b; };
  Check<int16_t, int32_t>("mul.wide", 2, product);
  Check<uint16_t, uint32_t>("mul.wide", 2, product);
  Check<int32_t, int64_t>("mul.wide", 2, product);
  Check<uint32_t, uint64_t>("mul.wide", 2, product);
  Check<uint32_t, uint64_t>("mad.wide", 3, [](Wide a, Wide b, Wide c) { return a * b + c; });
}

// By its definition in the PTX manual, bit by bit.
uint32_t ExtractByDefinition(uint32_t a, uint32_t position, uint32_t length, bool is_signed) {
  position &= 255;
  length &= 255;
  const uint32_t sign_at = std::min(position + length - 1, 31u);
  const bool sign = is_signed && length != 0 && (a >> sign_at & 1) != 0;
  uint32_t d = 0;
  for (uint32_t i = 0; i < 32; ++i) {
    const bool bit = i < length && position + i <= 31 ? (a >> (position + i) & 1) != 0 : sign;
    d |= static_cast<uint32_t>(bit) << i;
  }
  return d;
}

TEST(ArithmeticTest, Bits) {
  Arguments arguments;
  std::mt19937_64 random(2);
  for (int j = 0; j < 700; ++j) {
    arguments.push_back({random() & 0xffffffff, random() % 40, random() % 40});
  }
  const auto check = [&](const std::string& opcode, int count, auto expected) {
    const std::vector<uint64_t> results =
        RunOperation({opcode, "b32", std::vector<std::string>(count, "b32")}, arguments);
    for (size_t j = 0; j < results.size(); ++j) {
      const auto a = static_cast<uint32_t>(arguments[j][0]);
      const auto b = static_cast<uint32_t>(arguments[j][1]);
      const auto c = static_cast<uint32_t>(arguments[j][2]);
      ASSERT_EQ(results[j], static_cast<uint32_t>(expected(a, b, c)))
          << opcode << " of " << a << ", " << b << ", " << c;
    }
  };
  using U = uint32_t;
  check("shl.b32", 2, [](U a, U b, U) { return b > 31 ? 0 : a << b; });
  check("shr.u32", 2, [](U a, U b, U) { return b > 31 ? 0 : a >> b; });
  check("shr.s32", 2, [](U a, U b, U) { return static_cast<int32_t>(a) >> std::min(b, 31u); });
  check("bfe.u32", 3, [](U a, U b, U c) { return ExtractByDefinition(a, b, c, false); });
  check("bfe.s32", 3, [](U a, U b, U c) { return ExtractByDefinition(a, b, c, true); });
  check("popc.b32", 1, [](U a, U, U) { return std::popcount(a); });
  check("clz.b32", 1, [](U a, U, U) { return std::countl_zero(a); });
  check("not.b32", 1, [](U a, U, U) { return ~a; });
  check("xor.b32", 2, [](U a, U b, U) { return a ^ b; });
  check("prmt.b32", 3, [](U a, U b, U c) {
    U d = 0;
    for (int j = 0; j < 4; ++j) {
      const U s = c >> (4 * j) & 15, from = (s & 4) != 0 ? b : a;
      U byte = from >> (8 * (s & 3)) & 255;
      if ((s & 8) != 0) byte = (byte & 128) != 0 ? 255 : 0;
      d |= byte << (8 * j);
    }
    return d;
  });
  check("shf.l.wrap.b32", 3,
        [](U a, U b, U c) { return (c & 31) == 0 ? b : b << (c & 31) | a >> (32 - (c & 31)); });
}

// f32 results of exact values, rounded as PTX says.
enum class Rounding { kNearest, kZero, kDown, kUp };

float Round(__float128 exact, Rounding rounding) {
  auto nearest = static_cast<float>(exact);
  const auto back = static_cast<__float128>(nearest);
  if (back == exact || rounding == Rounding::kNearest) return nearest;
  const bool too_high = back > exact;
  const bool down = rounding == Rounding::kDown || (rounding == Rounding::kZero && exact > 0);
  const float infinity = std::numeric_limits<float>::infinity();
  if (down && too_high) nearest = std::nextafter(nearest, -infinity);
  if (!down && !too_high) nearest = std::nextafter(nearest, infinity);
  return nearest;
}

Arguments Floats(int exponents) {
  std::mt19937 random(3);
  std::uniform_real_distribution<float> mantissa(1, 2);
  Arguments all;
  const auto one = [&] {
    const float x =
        std::ldexp(mantissa(random), static_cast<int>(random() % (2 * exponents)) - exponents);
    return std::bit_cast<uint32_t>(random() % 2 == 0 ? x : -x);
  };
  for (int j = 0; j < 1100; ++j) all.push_back({one(), one(), one()});
  return all;
}

float AsFloat(uint64_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits)); }

TEST(ArithmeticTest, FloatsRoundAsAsked) {
  const std::pair<const char*, Rounding> roundings[] = {{"rn", Rounding::kNearest},
                                                        {"rz", Rounding::kZero},
                                                        {"rm", Rounding::kDown},
                                                        {"rp", Rounding::kUp}};
  using Q = __float128;
  const Arguments arguments = Floats(20);
  for (const auto& [name, rounding] : roundings) {
    const auto check = [&](const std::string& opcode, int count, auto expected) {
      const std::string full = opcode + "." + name + ".f32";
      const std::vector<uint64_t> results =
          RunOperation({full, "f32", std::vector<std::string>(count, "f32")}, arguments);
      for (size_t j = 0; j < results.size(); ++j) {
        const float a = AsFloat(arguments[j][0]), b = AsFloat(arguments[j][1]);
        const float c = AsFloat(arguments[j][2]);
        ASSERT_EQ(AsFloat(results[j]), Round(expected(Q{a}, Q{b}, Q{c}), rounding))
            << full << " of " << a << ", " << b << ", " << c;
      }
    };
    check("add", 2, [](Q a, Q b, Q) { return a + b; });
    check("sub", 2, [](Q a, Q b, Q) { return a - b; });
    check("mul", 2, [](Q a, Q b, Q) { return a * b; });
    check("fma", 3, [](Q a, Q b, Q c) { return a * b + c; });
    check("div", 2, [](Q a, Q b, Q) { return a / b; });
    check("rcp", 1, [](Q a, Q, Q) { return 1 / a; });
  }
}

uint32_t One(const std::string& opcode, float a, float b = 0, float c = 0) {
  const int count = opcode.rfind("fma", 0) == 0 ? 3 : 2;
  return static_cast<uint32_t>(RunOperation(
      {opcode, "f32", std::vector<std::string>(count, "f32")},
      {{std::bit_cast<uint32_t>(a), std::bit_cast<uint32_t>(b), std::bit_cast<uint32_t>(c)}})[0]);
}

TEST(ArithmeticTest, NanZerosAndSubnormals) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  constexpr uint32_t kCanonical = 0x7fffffff, kMinusZero = 0x80000000;
  EXPECT_EQ(One("add.f32", -nan, 1), kCanonical);
  EXPECT_EQ(One("mul.f32", infinity, 0), kCanonical);
  EXPECT_EQ(One("fma.rn.f32", infinity, 1, -infinity), kCanonical);
  // NaN loses, unless asked for.
  EXPECT_EQ(One("min.f32", nan, 2), std::bit_cast<uint32_t>(2.0f));
  EXPECT_EQ(One("max.f32", 2, nan), std::bit_cast<uint32_t>(2.0f));
  EXPECT_EQ(One("max.f32", nan, nan), kCanonical);
  EXPECT_EQ(One("max.NaN.f32", 2, nan), kCanonical);
  EXPECT_EQ(One("min.f32", 0.0f, -0.0f), kMinusZero);
  EXPECT_EQ(One("min.f32", -0.0f, 0.0f), kMinusZero);
  EXPECT_EQ(One("max.f32", -0.0f, 0.0f), 0u);
  const float subnormal = 0x1p-130f;
  EXPECT_EQ(One("add.f32", subnormal, 0), std::bit_cast<uint32_t>(subnormal));
  EXPECT_EQ(One("add.ftz.f32", subnormal, 0), 0u);
  EXPECT_EQ(One("mul.ftz.f32", -0x1p-70f, 0x1p-70f), kMinusZero);
  EXPECT_EQ(One("min.ftz.f32", subnormal, 1), 0u);
  EXPECT_EQ(One("add.sat.f32", 3, 4), std::bit_cast<uint32_t>(1.0f));
  EXPECT_EQ(One("add.sat.f32", nan, 4), 0u);
  EXPECT_EQ(One("add.sat.f32", -3, 1), 0u);
}

TEST(ArithmeticTest, ApproximationsAreWithinPtxsBounds) {
  const auto check = [](const std::string& opcode, const Arguments& arguments, double bound,
                        auto expected) {
    const std::vector<uint64_t> results = RunOperation({opcode, "f32", {"f32"}}, arguments);
    for (size_t j = 0; j < results.size(); ++j) {
      const double x = AsFloat(arguments[j][0]), want = expected(x), got = AsFloat(results[j]);
      ASSERT_LE(std::abs(got - want), bound * std::max(std::abs(want), 0x1p-126))
          << opcode << " of " << x << ": " << got << " instead of " << want;
    }
  };
  Arguments positive = Floats(30), small;
  for (auto& each : positive) each[0] &= 0x7fffffff;
  for (int j = -5000; j < 5000; ++j) small.push_back({std::bit_cast<uint32_t>(j * 0.0241f), 0, 0});
  check("ex2.approx.f32", small, 0x1p-22, [](double x) { return std::exp2(x); });
  check("rcp.approx.f32", positive, 0x1p-23, [](double x) { return 1 / x; });
  check("rsqrt.approx.f32", positive, std::exp2(-22.4), [](double x) { return 1 / std::sqrt(x); });
  check("sqrt.approx.f32", positive, 0x1p-22, [](double x) { return std::sqrt(x); });
  check("tanh.approx.f32", small, 0x1p-11, [](double x) { return std::tanh(x); });
  const std::vector<uint64_t> logs = RunOperation({"lg2.approx.f32", "f32", {"f32"}}, positive);
  for (size_t j = 0; j < logs.size(); ++j) {
    const double want = std::log2(static_cast<double>(AsFloat(positive[j][0])));
    ASSERT_LE(std::abs(AsFloat(logs[j]) - want), 0x1p-22 * std::max(1.0, std::abs(want)));
  }
}

TEST(ArithmeticTest, SmallFloatsRoundOnce) {
  const auto run = [](const std::string& opcode, uint64_t a, uint64_t b, uint64_t c) {
    return RunOperation({opcode, "b16", {"b16", "b16", "b16"}}, {{a, b, c}})[0];
  };
  EXPECT_EQ(run("fma.rn.f16", 0x1001, 0x3c00, 0x3c00), 0x3c01u);
  // 2^-11 (1 + 2^-10) (1 - 2^-10) + 1 + 2^-10 lies 2^-31 below the middle of two values; by way of
  // f32 it would become the middle, and then the greater one, which is even.
  EXPECT_EQ(run("fma.rn.f16", 0x1001, 0x3bfe, 0x3c01), 0x3c01u);
  EXPECT_EQ(RunOperation({"add.f16x2", "b32", {"b32", "b32"}}, {{0x3c004000, 0x40003c00, 0}})[0],
            0x42004200u);
  EXPECT_EQ(RunOperation({"mul.bf16x2", "b32", {"b32", "b32"}}, {{0x40003f80, 0x40404040, 0}})[0],
            0x40c04040u);
}

TEST(ArithmeticTest, Comparisons) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto holds = [](const std::string& opcode, float a, float b) {
    return RunOperation({opcode, "pred", {"f32", "f32"}},
                        {{std::bit_cast<uint32_t>(a), std::bit_cast<uint32_t>(b), 0}})[0] != 0;
  };
  for (const char* ordered : {"eq", "ne", "lt", "le", "gt", "ge", "num"}) {
    EXPECT_FALSE(holds(std::string("setp.") + ordered + ".f32", nan, 1)) << ordered;
  }
  for (const char* unordered : {"equ", "neu", "ltu", "leu", "gtu", "geu", "nan"}) {
    EXPECT_TRUE(holds(std::string("setp.") + unordered + ".f32", 1, nan)) << unordered;
  }
  EXPECT_TRUE(holds("setp.ne.f32", 1, 2));
  EXPECT_TRUE(holds("setp.eq.f32", 0.0f, -0.0f));
  EXPECT_FALSE(holds("setp.ltu.f32", 2, 1));
}

TEST(ArithmeticTest, WhatIsNotThereIsNamed) {
  const std::string message = MessageOf([] {
    RunOperation({"frobnicate.s32", "b32", {"b32"}}, {{}});
  });
  EXPECT_NE(message.find("frobnicate.s32 is not implemented"), std::string::npos) << message;
  EXPECT_NE(message.find("PTX line"), std::string::npos) << message;
}

}  // namespace
}  // namespace cudasim::ptx
