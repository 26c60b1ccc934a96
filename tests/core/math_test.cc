#include "core/math.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/philox.h"

namespace lockstep {
namespace {

using Wide = long double;  // more digits than f64, on x86

// In units of the last place of `want`; zeros of other signs, infinities and NaN differ by many.
double Ulps(double got, Wide want) {
  const auto rounded = static_cast<double>(want);
  if (std::isnan(rounded)) return std::isnan(got) ? 0 : 1e9;
  if (std::signbit(got) != std::signbit(rounded)) return 1e9;
  if (got == rounded) return 0;
  if (std::isinf(got) || std::isinf(rounded)) return 1e9;
  int exponent;
  std::frexp(rounded, &exponent);
  return static_cast<double>(std::fabs(got - want)) /
         std::ldexp(1.0, std::max(exponent - 53, -1074));
}

const std::vector<double> kSpecial = {
    0., -0., 0.5, -0.5, 1, -1, 2, -2, 3, -3, 4, 5e-324, -5e-324, 1e-310, -1e-310, 0x1p-1022, 1e-20,
    -1e-20, INFINITY, -INFINITY, NAN, 0x1.fffffffffffffp+1023, -0x1.fffffffffffffp+1023,
    // Where exponentials overflow, vanish, or become denormal, and expm1 becomes -1.
    709.78, 709.79, -745.13, -745.14, -708.5, 36.7, -36.7, -40.5,
    // Next to a multiple of pi/2, also the nearest of all (6381956970095103 2^797).
    0x1.921fb54442d18p+0, 0x1.921fb54442d18p+1, 0x1.6ac5b262ca1ffp+849, 1e22, 0x1p40, -0x1p40,
    0x1p53,
    // Next to a power of two times sqrt(2).
    0x1.6a09e667f3bcdp+0, 0x1.6a09e667f3bccp-1, 0x1.fffffffffffffp-1, -0x1.fffffffffffffp-1};

// Numbers of each size that `at` may be of: of all bits, small, near 1, and multiples of pi/2.
double Argument(uint64_t i) {
  const Philox::Block block = Philox(0)(0, i);
  const uint64_t word = uint64_t{block.v[0]} << 32 | block.v[1];
  const double unit = static_cast<double>(word >> 11) * 0x1p-53;
  switch (i % 6) {
    case 0:
      return std::bit_cast<double>(word);
    case 1:
      return 1 + std::ldexp(unit - 0.5, -static_cast<int>(block.v[2] % 50));
    case 2:
      return std::rint((unit - 0.5) * 1e6) * 0x1.921fb54442d18p+0;
    default:
      return std::ldexp(unit - 0.5, static_cast<int>(block.v[2] % 30) - 18);
  }
}

void ExpectClose(const char* name, double (*f)(double), Wide (*want)(Wide)) {
  for (const double x : kSpecial) EXPECT_LT(Ulps(f(x), want(x)), 1.2) << name << " of " << x;
  double worst = 0, at = 0;
  for (uint64_t i = 0; i < 60'000; ++i) {
    const double x = Argument(i), ulps = Ulps(f(x), want(x));
    if (ulps > worst) worst = ulps, at = x;
  }
  EXPECT_LT(worst, 1.2) << name << " of " << at;
}

TEST(MathTest, FunctionsOfOneNumberAreWithinTheirBounds) {
  ExpectClose("exp", math::Exp, std::exp);
  ExpectClose("expm1", math::Expm1, std::expm1);
  ExpectClose("log", math::Log, std::log);
  ExpectClose("log1p", math::Log1p, std::log1p);
  ExpectClose("sin", math::Sin, std::sin);
  ExpectClose("cos", math::Cos, std::cos);
}

TEST(MathTest, PowersAreWithinTheirBounds) {
  const auto expect_close = [](double x, double y) {
    const Wide want = std::pow(Wide{x}, Wide{y});
    EXPECT_LT(Ulps(math::Pow(x, y), want), 1.8) << x << "^" << y;
    const auto a = static_cast<float>(x), b = static_cast<float>(y);
    const auto near = static_cast<float>(std::pow(Wide{a}, Wide{b})), got = math::Pow(a, b);
    if (std::isnan(near) ? std::isnan(got) : got == near) return;
    EXPECT_TRUE(std::nextafter(got, near) == near) << a << "^" << b << " in f32";
  };
  for (const double x : kSpecial) {
    for (const double y : kSpecial) expect_close(x, y);
  }
  for (uint64_t i = 0; i < 30'000; ++i) {
    const double x = Argument(2 * i), y = Argument(2 * i + 1);
    expect_close(i % 3 == 0 ? x : std::fabs(x), i % 5 == 0 ? std::rint(y) : y);
  }
}

}  // namespace
}  // namespace lockstep
