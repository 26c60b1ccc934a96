// What bf16 and f16 have in common: arithmetic, comparisons, pairs. Every operation is rounded once
// to nearest even, as on the GPU.
#ifndef CUDASIM_FLOAT16_H_
#define CUDASIM_FLOAT16_H_

#include <cmath>
#include <concepts>
#include <type_traits>

#include "cudasim/float_formats.h"
#include "cudasim/types.h"

namespace cudasim {

// Specialised by cuda_bf16.h and cuda_fp16.h: the number's pair type, and T::FromDouble(double),
// T::FromFloat(float), float T::ToFloat().
template <typename T>
struct Float16Traits {
  static constexpr bool kIs = false;
};
template <typename T>
concept Float16 = Float16Traits<T>::kIs;
template <typename T>
struct Float16PairTraits {
  static constexpr bool kIs = false;
};
template <typename T>
concept Float16Pair = Float16PairTraits<T>::kIs;

template <Float16Pair P, typename F>
P EachHalf(P a, const F& f) {
  P result;
  result.x = f(a.x);
  result.y = f(a.y);
  return result;
}
template <Float16Pair P, typename F>
P EachHalf(P a, P b, const F& f) {
  P result;
  result.x = f(a.x, b.x);
  result.y = f(a.y, b.y);
  return result;
}

}  // namespace cudasim

// A float has more than twice as many bits as these, plus two: so for one addition, multiplication,
// division or root, rounding the float result again equals rounding once.
template <cudasim::Float16 T>
T __hadd(T a, T b) {
  return T::FromFloat(a.ToFloat() + b.ToFloat());
}
template <cudasim::Float16 T>
T __hsub(T a, T b) {
  return T::FromFloat(a.ToFloat() - b.ToFloat());
}
template <cudasim::Float16 T>
T __hmul(T a, T b) {
  return T::FromFloat(a.ToFloat() * b.ToFloat());
}
template <cudasim::Float16 T>
T __hdiv(T a, T b) {
  return T::FromFloat(a.ToFloat() / b.ToFloat());
}
template <cudasim::Float16 T>
T __hadd_rn(T a, T b) {
  return __hadd(a, b);
}
template <cudasim::Float16 T>
T __hsub_rn(T a, T b) {
  return __hsub(a, b);
}
template <cudasim::Float16 T>
T __hmul_rn(T a, T b) {
  return __hmul(a, b);
}
template <cudasim::Float16 T>
T __hfma(T a, T b, T c) {
  return T::FromDouble(cudasim::MultiplyAddToOdd(a.ToFloat(), b.ToFloat(), c.ToFloat()));
}
template <cudasim::Float16 T>
T __hneg(T a) {
  return T::FromBits(static_cast<uint16_t>(a.Bits() ^ 0x8000));
}
template <cudasim::Float16 T>
T __habs(T a) {
  return T::FromBits(static_cast<uint16_t>(a.Bits() & 0x7fff));
}
template <cudasim::Float16 T>
bool __hisnan(T a) {
  return std::isnan(a.ToFloat());
}
// -1, 0, 1
template <cudasim::Float16 T>
int __hisinf(T a) {
  return std::isinf(a.ToFloat()) ? (a.ToFloat() < 0 ? -1 : 1) : 0;
}

template <cudasim::Float16 T>
bool __heq(T a, T b) {
  return a.ToFloat() == b.ToFloat();
}
// Unlike C's !=, false if one is NaN.
template <cudasim::Float16 T>
bool __hne(T a, T b) {
  return a.ToFloat() < b.ToFloat() || a.ToFloat() > b.ToFloat();
}
template <cudasim::Float16 T>
bool __hlt(T a, T b) {
  return a.ToFloat() < b.ToFloat();
}
template <cudasim::Float16 T>
bool __hle(T a, T b) {
  return a.ToFloat() <= b.ToFloat();
}
template <cudasim::Float16 T>
bool __hgt(T a, T b) {
  return a.ToFloat() > b.ToFloat();
}
template <cudasim::Float16 T>
bool __hge(T a, T b) {
  return a.ToFloat() >= b.ToFloat();
}

// NaN loses; -0 is below +0.
template <cudasim::Float16 T>
T __hmax(T a, T b) {
  if (__hisnan(a)) return __hisnan(b) ? T::FromBits(0x7fff) : b;
  if (__hisnan(b)) return a;
  if (a.ToFloat() == b.ToFloat()) return (a.Bits() & 0x8000) != 0 ? b : a;
  return a.ToFloat() > b.ToFloat() ? a : b;
}
template <cudasim::Float16 T>
T __hmin(T a, T b) {
  if (__hisnan(a)) return __hisnan(b) ? T::FromBits(0x7fff) : b;
  if (__hisnan(b)) return a;
  if (a.ToFloat() == b.ToFloat()) return (a.Bits() & 0x8000) != 0 ? a : b;
  return a.ToFloat() < b.ToFloat() ? a : b;
}
// NaN wins.
template <cudasim::Float16 T>
T __hmax_nan(T a, T b) {
  return __hisnan(a) || __hisnan(b) ? T::FromBits(0x7fff) : __hmax(a, b);
}
template <cudasim::Float16 T>
T __hmin_nan(T a, T b) {
  return __hisnan(a) || __hisnan(b) ? T::FromBits(0x7fff) : __hmin(a, b);
}

// Functions, computed in double: rounded once, except in the rarest cases.
template <cudasim::Float16 T>
T hexp(T a) {
  return T::FromDouble(std::exp(static_cast<double>(a.ToFloat())));
}
template <cudasim::Float16 T>
T hexp2(T a) {
  return T::FromDouble(std::exp2(static_cast<double>(a.ToFloat())));
}
template <cudasim::Float16 T>
T hlog(T a) {
  return T::FromDouble(std::log(static_cast<double>(a.ToFloat())));
}
template <cudasim::Float16 T>
T hlog2(T a) {
  return T::FromDouble(std::log2(static_cast<double>(a.ToFloat())));
}
template <cudasim::Float16 T>
T hsqrt(T a) {
  return T::FromFloat(std::sqrt(a.ToFloat()));
}
template <cudasim::Float16 T>
T hrsqrt(T a) {
  return T::FromDouble(1.0 / std::sqrt(static_cast<double>(a.ToFloat())));
}
template <cudasim::Float16 T>
T hrcp(T a) {
  return T::FromFloat(1.0f / a.ToFloat());
}
template <cudasim::Float16 T>
T hsin(T a) {
  return T::FromDouble(std::sin(static_cast<double>(a.ToFloat())));
}
template <cudasim::Float16 T>
T hcos(T a) {
  return T::FromDouble(std::cos(static_cast<double>(a.ToFloat())));
}
template <cudasim::Float16 T>
T htanh(T a) {
  return T::FromDouble(std::tanh(static_cast<double>(a.ToFloat())));
}
template <cudasim::Float16 T>
T hfloor(T a) {
  return T::FromFloat(std::floor(a.ToFloat()));
}
template <cudasim::Float16 T>
T hceil(T a) {
  return T::FromFloat(std::ceil(a.ToFloat()));
}

template <cudasim::Float16 T>
T operator+(T a, T b) {
  return __hadd(a, b);
}
template <cudasim::Float16 T>
T operator-(T a, T b) {
  return __hsub(a, b);
}
template <cudasim::Float16 T>
T operator*(T a, T b) {
  return __hmul(a, b);
}
template <cudasim::Float16 T>
T operator/(T a, T b) {
  return __hdiv(a, b);
}
template <cudasim::Float16 T>
T operator-(T a) {
  return __hneg(a);
}
template <cudasim::Float16 T>
T& operator+=(T& a, T b) {
  return a = __hadd(a, b);
}
template <cudasim::Float16 T>
T& operator-=(T& a, T b) {
  return a = __hsub(a, b);
}
template <cudasim::Float16 T>
T& operator*=(T& a, T b) {
  return a = __hmul(a, b);
}
template <cudasim::Float16 T>
T& operator/=(T& a, T b) {
  return a = __hdiv(a, b);
}
template <cudasim::Float16 T>
bool operator==(T a, T b) {
  return __heq(a, b);
}
template <cudasim::Float16 T>
bool operator!=(T a, T b) {
  return !__heq(a, b);
}
template <cudasim::Float16 T>
bool operator<(T a, T b) {
  return __hlt(a, b);
}
template <cudasim::Float16 T>
bool operator<=(T a, T b) {
  return __hle(a, b);
}
template <cudasim::Float16 T>
bool operator>(T a, T b) {
  return __hgt(a, b);
}
template <cudasim::Float16 T>
bool operator>=(T a, T b) {
  return __hge(a, b);
}

// Pairs.
template <cudasim::Float16Pair P>
P __hadd2(P a, P b) {
  return cudasim::EachHalf(a, b, [](auto u, auto v) { return __hadd(u, v); });
}
template <cudasim::Float16Pair P>
P __hsub2(P a, P b) {
  return cudasim::EachHalf(a, b, [](auto u, auto v) { return __hsub(u, v); });
}
template <cudasim::Float16Pair P>
P __hmul2(P a, P b) {
  return cudasim::EachHalf(a, b, [](auto u, auto v) { return __hmul(u, v); });
}
template <cudasim::Float16Pair P>
P __h2div(P a, P b) {
  return cudasim::EachHalf(a, b, [](auto u, auto v) { return __hdiv(u, v); });
}
template <cudasim::Float16Pair P>
P __hmax2(P a, P b) {
  return cudasim::EachHalf(a, b, [](auto u, auto v) { return __hmax(u, v); });
}
template <cudasim::Float16Pair P>
P __hmin2(P a, P b) {
  return cudasim::EachHalf(a, b, [](auto u, auto v) { return __hmin(u, v); });
}
template <cudasim::Float16Pair P>
P __hneg2(P a) {
  return cudasim::EachHalf(a, [](auto u) { return __hneg(u); });
}
template <cudasim::Float16Pair P>
P __habs2(P a) {
  return cudasim::EachHalf(a, [](auto u) { return __habs(u); });
}
template <cudasim::Float16Pair P>
P __hfma2(P a, P b, P c) {
  P result;
  result.x = __hfma(a.x, b.x, c.x);
  result.y = __hfma(a.y, b.y, c.y);
  return result;
}
template <cudasim::Float16Pair P>
P h2exp(P a) {
  return cudasim::EachHalf(a, [](auto u) { return hexp(u); });
}
template <cudasim::Float16Pair P>
P h2exp2(P a) {
  return cudasim::EachHalf(a, [](auto u) { return hexp2(u); });
}
template <cudasim::Float16Pair P>
P h2rcp(P a) {
  return cudasim::EachHalf(a, [](auto u) { return hrcp(u); });
}
template <cudasim::Float16Pair P>
P h2sqrt(P a) {
  return cudasim::EachHalf(a, [](auto u) { return hsqrt(u); });
}
template <cudasim::Float16Pair P>
P h2rsqrt(P a) {
  return cudasim::EachHalf(a, [](auto u) { return hrsqrt(u); });
}
template <cudasim::Float16Pair P>
P operator+(P a, P b) {
  return __hadd2(a, b);
}
template <cudasim::Float16Pair P>
P operator-(P a, P b) {
  return __hsub2(a, b);
}
template <cudasim::Float16Pair P>
P operator*(P a, P b) {
  return __hmul2(a, b);
}
template <cudasim::Float16Pair P>
P operator-(P a) {
  return __hneg2(a);
}
template <cudasim::Float16Pair P>
P& operator+=(P& a, P b) {
  return a = __hadd2(a, b);
}
template <cudasim::Float16Pair P>
P& operator*=(P& a, P b) {
  return a = __hmul2(a, b);
}

template <cudasim::Float16Pair P>
float __low2float(P a) {
  return a.x.ToFloat();
}
template <cudasim::Float16Pair P>
float __high2float(P a) {
  return a.y.ToFloat();
}
template <cudasim::Float16Pair P>
P __lowhigh2highlow(P a) {
  return P(a.y, a.x);
}

#endif  // CUDASIM_FLOAT16_H_
