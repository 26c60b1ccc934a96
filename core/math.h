// Elementary functions of f64 that need nothing but IEEE 754's operations and those on bits, so
// that they have the same bits with every compiler and on every CPU; the C library's change from
// version to version. Within 1.2 ulp, Pow within 1.8. Without branches, but for the sines of large
// numbers: loops become vector code.
//
// Only under -ffp-contract=off, which keeps compilers from fusing what is not written as fma.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace lockstep::math {

// first x^n + ... + c_n by Horner's rule.
template <class A, class... C>
inline A Horner(A x, A first, C... c) {
  ((first = std::fma(first, x, static_cast<A>(c))), ...);
  return first;
}

namespace internal {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kRound = 0x1.8p52;  // x plus this ends in the integer nearest to x

// 2^n for an integer n in [-1022, 1023].
inline double PowerOf2(double n) {
  return std::bit_cast<double>((std::bit_cast<uint64_t>(n + kRound) << 52) + 0x3ff0000000000000);
}

// x = n c + r + rest, for an integer n and a constant c; or 2^n (1 + r).
struct Reduced {
  double n, r, rest = 0;
};

inline Reduced ByLn2(double x) {
  const double n = std::fma(x, 0x1.71547652b82fep+0, kRound) - kRound;
  const double high = std::fma(n, -0x1.62e42feep-1, x);  // exact
  const double low = n * 0x1.a39ef35793c76p-33, r = high - low;
  return {n, r, (high - r) - low};
}

// e^(r + rest) - 1 - r for |r| <= 0.35 and a small rest, by Taylor's series.
inline double ExpTail(double r, double rest) {
  const double q =
      Horner(r, 1. / 6227020800, 1. / 479001600, 1. / 39916800, 1. / 3628800, 1. / 362880,
             1. / 40320, 1. / 5040, 1. / 720, 1. / 120, 1. / 24, 1. / 6, 1. / 2);
  return std::fma(r * r, q, rest);
}

// e^(x + rest) for x in [-746, 710], outside of which it is 0 or infinite.
inline double ExpOfSum(double x, double rest) {
  const Reduced of = ByLn2(x);
  const double r = of.r + rest, tail = ExpTail(r, (of.r - r) + rest + of.rest);
  const double half = (0.5 * of.n + kRound) - kRound;
  return (1 + (r + tail)) * PowerOf2(half) * PowerOf2(of.n - half);
}

// For x > 0: 2^n (1 + r) with 1 + r from sqrt(1/2) to sqrt(2).
inline Reduced ByPowerOf2(double x) {
  constexpr uint64_t kOne = 0x3ff0000000000000, kLeast = 0x3fe6a09e00000000;
  const bool denormal = x < 0x1p-1022;
  const uint64_t bits = std::bit_cast<uint64_t>(denormal ? x * 0x1p54 : x) + (kOne - kLeast);
  const double n = std::bit_cast<double>((bits >> 52) + 0x4330000000000000) - 0x1p52;
  return {n - (denormal ? 1077 : 1023),
          std::bit_cast<double>((bits & 0x000fffffffffffff) + kLeast) - 1};
}

// log(x) + rest for a small rest, as fdlibm computes it (e_log.c).
inline double LogPlus(double x, double rest) {
  const auto [n, f, none] = ByPowerOf2(x);
  const double s = f / (2 + f), z = s * s, half = 0.5 * f * f;
  const double tail =
      z * Horner(z, 1.479819860511658591e-01, 1.531383769920937332e-01, 1.818357216161805012e-01,
                 2.222219843214978396e-01, 2.857142874366239149e-01, 3.999999999940941908e-01,
                 6.666666666666735130e-01);
  const double low = std::fma(n, 0x1.a39ef35793c76p-33, rest);
  const double y = std::fma(n, 0x1.62e42feep-1, f - (half - std::fma(s, half + tail, low)));
  return x == kInfinity ? x : x > 0 ? y : x == 0 ? -kInfinity : kNaN;
}

// log(x) as r + rest, with a relative error of 2^-65: 2 atanh(s), whose first two terms are sums of
// two numbers each.
inline Reduced LogAsSum(double x) {
  const auto [n, f, none] = ByPowerOf2(x);
  const double d = 2 + f, s = f / d;
  const double s_low = (std::fma(-s, d, f) - s * (f - (d - 2))) / d;
  const double z = s * s, z_low = std::fma(s, s, -z) + 2 * s * s_low;
  const double third = z * 0x1.5555555555555p-2;
  const double third_low = std::fma(z, 0x1.5555555555555p-2, -third) + z * 0x1.5555555555555p-56 +
                           z_low * 0x1.5555555555555p-2;
  const double more = z * z *
                      Horner(z, 1. / 23, 1. / 21, 1. / 19, 1. / 17, 1. / 15, 1. / 13, 1. / 11,
                             1. / 9, 1. / 7, 1. / 5);
  const double p = s * third;
  const double p_low = std::fma(s, third, -p) + s_low * third + s * (third_low + more);
  const double a = s + p, a_low = (s - a) + p + s_low + p_low;
  const double whole = n * 0x1.62e42feep-1, r = whole + 2 * a;
  return {0, r, (whole - r) + 2 * a + std::fma(n, 0x1.a39ef35793c76p-33, 2 * a_low)};
}

// Reduction by pi/2, with n modulo 4.
Reduced LargeByHalfPi(double x);

inline Reduced ByHalfPi(double x) {
  if (!(std::fabs(x) < 0x1p40)) [[unlikely]]
    return LargeByHalfPi(x);
  constexpr double kSecond = 0x1.1a62633145c07p-54;
  const double n = std::fma(x, 0x1.45f306dc9c883p-1, kRound) - kRound;
  const double high = std::fma(n, -0x1.921fb54442d18p+0, x), low = n * -kSecond;  // high is exact
  const double last = std::fma(n, -kSecond, -low) + n * 0x1.f1976b7ed8fbcp-110;
  const double r = high + low, of_low = r - high;
  return {n, r, (high - (r - of_low)) + (low - of_low) + last};
}

// sin(x + quarters pi/2), by fdlibm's polynomials (k_sin.c, k_cos.c).
inline double SinOfQuadrant(double x, int quarters) {
  const auto [n, r, rest] = ByHalfPi(x);
  const double z = r * r, half = 0.5 * z, cube = z * r, one = 1 - half;
  const double s =
      Horner(z, 1.58969099521155010221e-10, -2.50507602534068634195e-08, 2.75573137070700676789e-06,
             -1.98412698298579493134e-04, 8.33333333332248946124e-03);
  const double c = z * Horner(z, -1.13596475577881948265e-11, 2.08757232129817482790e-09,
                              -2.75573143513906633035e-07, 2.48015872894767294178e-05,
                              -1.38888888888741095749e-03, 4.16666666666666019037e-02);
  const double sine =
      r - ((z * (0.5 * rest - cube * s) - rest) + cube * 1.66666666666666324348e-01);
  const double cosine = one + (((1 - one) - half) + (z * c - r * rest));
  const uint64_t quadrant = std::bit_cast<uint64_t>(n + quarters + kRound);
  const double size = quadrant & 1 ? cosine : sine;
  return quadrant & 2 ? -size : size;
}

// x^y, given log|x| as a sum.
inline double PowOfLog(double x, double y, const Reduced& log) {
  const double power = y < -0x1p65 ? -0x1p65 : y > 0x1p65 ? 0x1p65 : y;
  const double product = power * log.r;
  const double rest = std::fma(power, log.r, -product) + power * log.rest;
  const double clamped = product < -746 ? -746 : product > 710 ? 710 : product;
  double z = ExpOfSum(clamped, clamped == product ? rest : 0);
  const double size = std::fabs(x);
  if (size == 0 || size == kInfinity) z = (size == 0) == (y > 0) ? 0 : kInfinity;
  const bool whole = std::floor(y) == y, odd = whole && std::floor(0.5 * y) != 0.5 * y;
  z = std::signbit(x) && odd ? -z : z;
  z = x < 0 && !whole && size != kInfinity ? kNaN : z;
  z = x != x || y != y ? x + y : z;
  return x == 1 || y == 0 ? 1 : z;
}

}  // namespace internal

inline double Exp(double x) { return internal::ExpOfSum(x < -746 ? -746 : x > 710 ? 710 : x, 0); }

inline double Expm1(double x) {
  const auto [n, r, rest] = internal::ByLn2(x < -40 ? -40 : x > 710 ? 710 : x);
  const double half = (0.5 * n + internal::kRound) - internal::kRound, other = n - half;
  const double power = internal::PowerOf2(half), one = power - internal::PowerOf2(-other);
  const double sum = one + power * r;
  const double y = sum + ((one - sum) + power * r + power * internal::ExpTail(r, rest));
  return x == 0 ? x : y * internal::PowerOf2(other);
}

inline double Log(double x) { return internal::LogPlus(x, 0); }

inline double Log1p(double x) {
  const double sum = 1 + x, of_x = sum - 1;
  const double y = internal::LogPlus(sum, ((1 - (sum - of_x)) + (x - of_x)) / sum);
  return x == 0 ? x : y;
}

inline double Sin(double x) { return internal::SinOfQuadrant(x, 0); }
inline double Cos(double x) { return internal::SinOfQuadrant(x, 1); }

// With C's values for zeros, infinities and NaN.
inline double Pow(double x, double y) {
  return internal::PowOfLog(x, y, internal::LogAsSum(std::fabs(x)));
}
// The same for what is then rounded to f32.
inline float Pow(float x, float y) {
  return static_cast<float>(internal::PowOfLog(x, y, {0, internal::LogPlus(std::fabs(x), 0)}));
}

}  // namespace lockstep::math
