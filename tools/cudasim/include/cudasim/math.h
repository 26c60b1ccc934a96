// The mathematical functions that CUDA adds to C, in float and double.
//
// Where the GPU has a fast approximation, these are correctly rounded or C's. But __expf, __powf
// and __exp10f go through base 2, as on the GPU, so their error grows with the argument.
#ifndef CUDASIM_MATH_H_
#define CUDASIM_MATH_H_

// For isfinite and others in the global namespace: <cmath> has them only in std.
#include <math.h>

#include <climits>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <type_traits>

// NOLINTBEGIN: CUDA's names and types
inline float rsqrtf(float x) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(x))); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float rsqrt(float x) { return rsqrtf(x); }
inline float rcbrtf(float x) { return static_cast<float>(1.0 / std::cbrt(static_cast<double>(x))); }
inline float fdividef(float a, float b) { return a / b; }
inline float sinpif(float x) {
  const double r = std::remainder(static_cast<double>(x), 2.0);
  return static_cast<float>(std::sin(r * 3.14159265358979323846));
}
inline float cospif(float x) {
  const double r = std::remainder(static_cast<double>(x), 2.0);
  return static_cast<float>(std::cos(r * 3.14159265358979323846));
}
inline void sincospif(float x, float* sine, float* cosine) {
  *sine = sinpif(x);
  *cosine = cospif(x);
}
inline float normcdff(float x) {
  return static_cast<float>(0.5 * std::erfc(-static_cast<double>(x) * 0.70710678118654752440));
}
inline double normcdf(double x) { return 0.5 * std::erfc(-x * 0.70710678118654752440); }
inline float norm3df(float a, float b, float c) { return std::hypot(a, b, c); }

// Fast approximations. glibc declares some of these names, with C linkage.
extern "C" {
inline float __expf(float x) noexcept { return ::exp2f(x * 1.4426950408889634f); }
inline float __logf(float x) noexcept { return ::logf(x); }
inline float __log2f(float x) noexcept { return ::log2f(x); }
inline float __log10f(float x) noexcept { return ::log10f(x); }
inline float __powf(float x, float y) noexcept { return ::exp2f(y * ::log2f(x)); }
inline float __sinf(float x) noexcept { return ::sinf(x); }
inline float __cosf(float x) noexcept { return ::cosf(x); }
inline float __tanf(float x) noexcept { return ::tanf(x); }
inline float __tanhf(float x) noexcept { return ::tanhf(x); }
inline void __sincosf(float x, float* sine, float* cosine) noexcept {
  *sine = ::sinf(x);
  *cosine = ::cosf(x);
}
}
inline float __exp10f(float x) noexcept { return ::exp2f(x * 3.3219280948873623f); }
inline float __fdividef(float a, float b) {
  // The GPU returns 0 here, and NaN for an infinite numerator.
  if (std::fabs(b) > 0x1p126f && std::isfinite(b)) return std::isinf(a) ? NAN : a / b * 0.0f;
  return a / b;
}
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }

// Rounded to nearest even, and never contracted by the compiler.
namespace cudasim {
template <typename T>
inline T Opaque(T x) {
  asm("" : "+x"(x));
  return x;
}
}  // namespace cudasim
inline float __fadd_rn(float a, float b) { return cudasim::Opaque(a + b); }
inline float __fsub_rn(float a, float b) { return cudasim::Opaque(a - b); }
inline float __fmul_rn(float a, float b) { return cudasim::Opaque(a * b); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __frsqrt_rn(float x) { return rsqrtf(x); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __dadd_rn(double a, double b) { return cudasim::Opaque(a + b); }
inline double __dsub_rn(double a, double b) { return cudasim::Opaque(a - b); }
inline double __dmul_rn(double a, double b) { return cudasim::Opaque(a * b); }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __dsqrt_rn(double x) { return std::sqrt(x); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }

namespace cudasim {
// The GPU's conversions: values out of range become the nearest in range. NaN becomes 0, but where
// 64 bits are involved the number whose highest bit alone is set.
template <typename To, typename From>
To ToInteger(From rounded) {
  constexpr bool kWide = sizeof(To) == 8 || sizeof(From) == 8;
  if (std::isnan(rounded)) {
    return kWide ? static_cast<To>(uint64_t{1} << (8 * sizeof(To) - 1)) : To{0};
  }
  if (rounded <= static_cast<From>(std::numeric_limits<To>::min())) {
    return std::numeric_limits<To>::min();
  }
  if (rounded >= static_cast<From>(std::numeric_limits<To>::max())) {
    return std::numeric_limits<To>::max();
  }
  return static_cast<To>(rounded);
}
}  // namespace cudasim
inline int __float2int_rn(float x) { return cudasim::ToInteger<int>(std::nearbyint(x)); }
inline int __float2int_rz(float x) { return cudasim::ToInteger<int>(std::trunc(x)); }
inline int __float2int_ru(float x) { return cudasim::ToInteger<int>(std::ceil(x)); }
inline int __float2int_rd(float x) { return cudasim::ToInteger<int>(std::floor(x)); }
inline unsigned __float2uint_rn(float x) { return cudasim::ToInteger<unsigned>(std::nearbyint(x)); }
inline unsigned __float2uint_rz(float x) { return cudasim::ToInteger<unsigned>(std::trunc(x)); }
inline unsigned __float2uint_ru(float x) { return cudasim::ToInteger<unsigned>(std::ceil(x)); }
inline unsigned __float2uint_rd(float x) { return cudasim::ToInteger<unsigned>(std::floor(x)); }
inline long long __float2ll_rn(float x) { return cudasim::ToInteger<long long>(std::nearbyint(x)); }
inline long long __double2ll_rn(double x) {
  return cudasim::ToInteger<long long>(std::nearbyint(x));
}
inline int __double2int_rn(double x) { return cudasim::ToInteger<int>(std::nearbyint(x)); }
inline int __double2int_rz(double x) { return cudasim::ToInteger<int>(std::trunc(x)); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
inline float __ll2float_rn(long long x) { return static_cast<float>(x); }
inline float __ull2float_rn(unsigned long long x) { return static_cast<float>(x); }
inline float __double2float_rn(double x) { return static_cast<float>(x); }
inline double __int2double_rn(int x) { return x; }

// max and min of mixed arguments, as CUDA has them in the global namespace.
#define CUDASIM_MIN_MAX(T)                            \
  constexpr T max(T a, T b) { return a < b ? b : a; } \
  constexpr T min(T a, T b) { return b < a ? b : a; }
CUDASIM_MIN_MAX(int)
CUDASIM_MIN_MAX(unsigned)
CUDASIM_MIN_MAX(long)
CUDASIM_MIN_MAX(unsigned long)
CUDASIM_MIN_MAX(long long)
CUDASIM_MIN_MAX(unsigned long long)
#undef CUDASIM_MIN_MAX
// NaN loses, as in fmaxf.
inline float max(float a, float b) { return ::fmaxf(a, b); }
inline float min(float a, float b) { return ::fminf(a, b); }
inline double max(double a, double b) { return ::fmax(a, b); }
inline double min(double a, double b) { return ::fmin(a, b); }
inline double max(float a, double b) { return ::fmax(a, b); }
inline double max(double a, float b) { return ::fmax(a, b); }
inline double min(float a, double b) { return ::fmin(a, b); }
inline double min(double a, float b) { return ::fmin(a, b); }
// For different integer types: with the usual conversions.
template <typename A, typename B,
          typename = std::enable_if_t<std::is_integral_v<A> && std::is_integral_v<B> &&
                                      !std::is_same_v<A, B>>>
constexpr auto max(A a, B b) {
  using C = std::common_type_t<A, B>;
  return static_cast<C>(a) < static_cast<C>(b) ? static_cast<C>(b) : static_cast<C>(a);
}
template <typename A, typename B,
          typename = std::enable_if_t<std::is_integral_v<A> && std::is_integral_v<B> &&
                                      !std::is_same_v<A, B>>>
constexpr auto min(A a, B b) {
  using C = std::common_type_t<A, B>;
  return static_cast<C>(b) < static_cast<C>(a) ? static_cast<C>(b) : static_cast<C>(a);
}
// NOLINTEND

#endif  // CUDASIM_MATH_H_
