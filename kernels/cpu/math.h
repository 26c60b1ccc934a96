// Elementary functions that compilers vectorise: branch-free (but for Sin and Cos), so a loop's
// vector body and its remainder give the same bits, and results do not depend on alignment or
// chunking. Those of f32 have the same bits everywhere; f64's Exp2, Tanh and Erf are the C
// library's.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/math.h"

namespace lockstep::cpu {

using math::Horner;
using math::Pow;

// e^(x - n ln 2), for n the integer nearest to x / ln 2. Polynomial of Cephes' expf.
inline float ExpReduced(float x, float n) {
  const float r = std::fma(n, 2.12194440e-4f, std::fma(n, -0.693359375f, x));
  const float p = Horner(r, 1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f,
                         1.6666665459e-1f, 5.0000001201e-1f);
  return std::fma(p * r, r, r) + 1.0f;
}

// e^x within 2 ulp; 0 below -87.3, infinity above 88.7, NaN for NaN.
inline float Exp(float x) {
  const float clamped = x < -87.33654f ? -87.33654f : (x > 88.72283f ? 88.72283f : x);
  const float n = std::floor(std::fma(clamped, 1.44269504f, 0.5f));
  const float e = ExpReduced(clamped, n);
  // n reaches 128, whose power of two is not a float: scale in two steps.
  const int32_t half = static_cast<int32_t>(n) >> 1;
  const int32_t rest = static_cast<int32_t>(n) - half;
  float y = e * std::bit_cast<float>((half + 127) << 23) * std::bit_cast<float>((rest + 127) << 23);
  y = x < -87.33654f ? 0.0f : y;
  y = x > 88.72283f ? std::numeric_limits<float>::infinity() : y;
  return x != x ? x : y;
}
inline double Exp(double x) { return math::Exp(x); }

// 2^x within 1 ulp for x from -126 to 127; 2^-126 below, infinity from 127.5 on, NaN for NaN.
inline float Exp2(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 2^23: the sum's last digits are x, rounded
  const float low = x < -126.0f ? -126.0f : x;
  const float clamped = low > 128.0f ? 128.0f : low;
  const float shifted = clamped + kRound;
  const float r = clamped - (shifted - kRound);
  // The polynomial with the least relative error on [-1/2, 1/2] that is 1 at 0.
  const float p = Horner(r, 0.00015353362f, 0.00133988739f, 0.00961843692f, 0.0555033237f,
                         0.240226477f, 0.693147182f, 1.0f);
  return p * std::bit_cast<float>((std::bit_cast<int32_t>(shifted) << 23) + 0x3f800000);
}
inline double Exp2(double x) { return std::exp2(x); }

// tanh within 4e-7 relative: a quotient of polynomials, as in Eigen, up to where it is within that
// of 1, and 1 beyond. NaN for NaN.
inline float Tanh(float x) {
  constexpr float kOne = 7.90531110763549805f;
  const float c = x < -kOne ? -kOne : (x > kOne ? kOne : x);
  const float s = c * c;
  const float p = Horner(s, -2.76076847742355e-16f, 2.00018790482477e-13f, -8.60467152213735e-11f,
                         5.12229709037114e-08f, 1.48572235717979e-05f, 6.37261928875436e-04f,
                         4.89352455891786e-03f);
  const float q = Horner(s, 1.19825839466702e-06f, 1.18534705686654e-04f, 2.26843463243900e-03f,
                         4.89352518554385e-03f);
  const float y = c * (p / q);
  return x < -kOne ? -1.0f : (x > kOne ? 1.0f : y);
}
inline double Tanh(double x) { return std::tanh(x); }

// The error function within 5e-7 relative: a quotient of polynomials on [-4, 4], as in Eigen, and 1
// beyond. NaN for NaN.
inline float Erf(float x) {
  const float c = x < -4.0f ? -4.0f : (x > 4.0f ? 4.0f : x);
  const float s = c * c;
  const float p = Horner(s, -2.72614225801306e-10f, 2.77068142495902e-08f, -2.10102402082508e-06f,
                         -5.69250639462346e-05f, -7.34990630326855e-04f, -2.95459980854025e-03f,
                         -1.60960333262415e-02f);
  const float q = Horner(s, -1.45660718464996e-05f, -2.13374055278905e-04f, -1.68282697438203e-03f,
                         -7.37332916720468e-03f, -1.42647390514189e-02f);
  return c * p / q;
}
inline double Erf(double x) { return std::erf(x); }

// Those of f64, also for f32: rounded once.
template <class A>
inline A Expm1(A x) {
  return static_cast<A>(math::Expm1(x));
}
template <class A>
inline A Log(A x) {
  return static_cast<A>(math::Log(x));
}
template <class A>
inline A Log1p(A x) {
  return static_cast<A>(math::Log1p(x));
}
template <class A>
inline A Sin(A x) {
  return static_cast<A>(math::Sin(x));
}
template <class A>
inline A Cos(A x) {
  return static_cast<A>(math::Cos(x));
}

// x sigmoid(x) and its derivative; A is float or double.
template <class A>
inline A Silu(A x) {
  return x / (A(1) + Exp(-x));
}
template <class A>
inline A SiluDerivative(A x) {
  const A s = A(1) / (A(1) + Exp(-x));
  return s * std::fma(x, A(1) - s, A(1));
}

// GELU in its tanh form (ops::Gelu), x/2 (1 + tanh(u)) with u = sqrt(2/pi) (x + 0.044715 x^3), is
// x / (1 + e^-2u): the denominator, GELU and its derivative.
template <class A>
inline A GeluDenominator(A x) {
  constexpr A kLinear(-2.302208198144325);  // -2 sqrt(2/pi) log2(e)
  constexpr A kCubic(-0.1029432395800235);  // 0.044715 of that
  return A(1) + Exp2(x * std::fma(kCubic, x * x, kLinear));
}
template <class A>
inline A Gelu(A x) {
  return x / GeluDenominator(x);
}
template <class A>
inline A GeluDerivative(A x) {
  constexpr A kLinear(1.5957691216057308);  // 2 sqrt(2/pi)
  constexpr A kCubic(0.21406444881780076);  // 3 * 0.044715 of that
  const A s = A(1) / GeluDenominator(x);
  // In this order: s, or 1 - s, is 0 where x is large, and its powers may be infinite.
  return std::fma(x * s * (A(1) - s), std::fma(kCubic, x * x, kLinear), s);
}

// GELU as defined, x Phi(x) with the normal distribution's Phi, and its derivative.
template <class A>
inline A GeluExact(A x) {
  return A(0.5) * x * (A(1) + Erf(x * A(0.70710678118654752440)));
}
template <class A>
inline A GeluExactDerivative(A x) {
  constexpr A kDensity(0.39894228040143267794);  // 1 / sqrt(2 pi)
  const A phi = A(0.5) * (A(1) + Erf(x * A(0.70710678118654752440)));
  return std::fma(x * kDensity, Exp(A(-0.5) * x * x), phi);
}

}  // namespace lockstep::cpu
