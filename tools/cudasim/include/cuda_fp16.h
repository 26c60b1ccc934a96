// float16: NVIDIA's names, on the host.
#ifndef CUDASIM_CUDA_FP16_H_
#define CUDASIM_CUDA_FP16_H_

#include "cudasim/float16.h"
#include "cudasim/types.h"

struct __half_raw {
  unsigned short x;  // NOLINT: CUDA's type
};

struct __half {
  __half() = default;
  // Implicit, as NVIDIA's are.
  __half(float x) : bits_(cudasim::FloatToHalf(x)) {}    // NOLINT
  __half(double x) : bits_(cudasim::DoubleToHalf(x)) {}  // NOLINT
  __half(__half_raw raw) : bits_(raw.x) {}               // NOLINT
  template <typename Int>
  requires std::is_integral_v<Int> __half(Int x)
      : bits_(cudasim::DoubleToHalf(static_cast<double>(x))) {}  // NOLINT

  operator float() const { return ToFloat(); }     // NOLINT
  operator __half_raw() const { return {bits_}; }  // NOLINT
  explicit operator bool() const { return (bits_ & 0x7fff) != 0; }

  static __half FromBits(uint16_t bits) {
    __half result;
    result.bits_ = bits;
    return result;
  }
  static __half FromFloat(float x) { return __half(x); }
  static __half FromDouble(double x) { return __half(x); }
  float ToFloat() const { return cudasim::HalfToFloat(bits_); }
  uint16_t Bits() const { return bits_; }

 private:
  uint16_t bits_;
};

struct __half2_raw {
  unsigned short x, y;  // NOLINT
};

struct alignas(4) __half2 {
  __half2() = default;
  __half2(__half x, __half y) : x(x), y(y) {}
  __half x, y;
};

template <>
struct cudasim::Float16Traits<__half> {
  static constexpr bool kIs = true;
};
template <>
struct cudasim::Float16PairTraits<__half2> {
  static constexpr bool kIs = true;
};

using half = __half;
using half2 = __half2;

inline __half __float2half(float x) { return __half(x); }
inline __half __float2half_rn(float x) { return __half(x); }
// Towards zero.
inline __half __float2half_rz(float x) {
  const __half nearest(x);
  const float back = nearest.ToFloat();
  const bool beyond = x < 0 ? back < x : back > x;
  return beyond ? __half::FromBits(static_cast<uint16_t>(nearest.Bits() - 1)) : nearest;
}
inline __half __double2half(double x) { return __half(x); }
inline __half __int2half_rn(int x) { return __half(x); }
inline __half __uint2half_rn(unsigned x) { return __half(x); }
inline float __half2float(__half x) { return x.ToFloat(); }
inline int __half2int_rn(__half x) {
  const float value = x.ToFloat();
  if (std::isnan(value)) return 0;
  if (value >= 0x1p31f) return 0x7fffffff;
  if (value < -0x1p31f) return -0x7fffffff - 1;
  return static_cast<int>(std::nearbyint(value));
}
inline unsigned short __half_as_ushort(__half x) { return x.Bits(); }             // NOLINT
inline short __half_as_short(__half x) { return static_cast<short>(x.Bits()); }   // NOLINT
inline __half __ushort_as_half(unsigned short x) { return __half::FromBits(x); }  // NOLINT
inline __half __short_as_half(short x) {                                          // NOLINT
  return __half::FromBits(static_cast<uint16_t>(x));
}

inline __half2 __float2half2_rn(float x) { return {__half(x), __half(x)}; }
inline __half2 __floats2half2_rn(float x, float y) { return {__half(x), __half(y)}; }
inline __half2 __float22half2_rn(float2 x) { return {__half(x.x), __half(x.y)}; }
inline float2 __half22float2(__half2 x) { return {x.x.ToFloat(), x.y.ToFloat()}; }
inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }
inline __half2 __half2half2(__half x) { return {x, x}; }
inline __half __low2half(__half2 x) { return x.x; }
inline __half __high2half(__half2 x) { return x.y; }
inline __half2 __low2half2(__half2 x) { return {x.x, x.x}; }
inline __half2 __high2half2(__half2 x) { return {x.y, x.y}; }
inline __half2 make_half2(__half x, __half y) { return {x, y}; }

#endif  // CUDASIM_CUDA_FP16_H_
