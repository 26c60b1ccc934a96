// bfloat16: NVIDIA's names, on the host.
#ifndef CUDASIM_CUDA_BF16_H_
#define CUDASIM_CUDA_BF16_H_

#include "cudasim/float16.h"
#include "cudasim/types.h"

struct __nv_bfloat16_raw {
  unsigned short x;  // NOLINT: CUDA's type
};

struct __nv_bfloat16 {
  __nv_bfloat16() = default;
  // Implicit, as NVIDIA's are.
  __nv_bfloat16(float x) : bits_(cudasim::FloatToBf16(x)) {}    // NOLINT
  __nv_bfloat16(double x) : bits_(cudasim::DoubleToBf16(x)) {}  // NOLINT
  __nv_bfloat16(__nv_bfloat16_raw raw) : bits_(raw.x) {}        // NOLINT
  template <typename Int>
  requires std::is_integral_v<Int> __nv_bfloat16(Int x)
      : bits_(cudasim::DoubleToBf16(static_cast<double>(x))) {}  // NOLINT

  operator float() const { return ToFloat(); }            // NOLINT
  operator __nv_bfloat16_raw() const { return {bits_}; }  // NOLINT
  explicit operator bool() const { return (bits_ & 0x7fff) != 0; }

  static __nv_bfloat16 FromBits(uint16_t bits) {
    __nv_bfloat16 result;
    result.bits_ = bits;
    return result;
  }
  static __nv_bfloat16 FromFloat(float x) { return __nv_bfloat16(x); }
  static __nv_bfloat16 FromDouble(double x) { return __nv_bfloat16(x); }
  float ToFloat() const { return cudasim::Bf16ToFloat(bits_); }
  uint16_t Bits() const { return bits_; }

 private:
  uint16_t bits_;
};

struct __nv_bfloat162_raw {
  unsigned short x, y;  // NOLINT
};

struct alignas(4) __nv_bfloat162 {
  __nv_bfloat162() = default;
  __nv_bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) : x(x), y(y) {}
  __nv_bfloat16 x, y;
};

template <>
struct cudasim::Float16Traits<__nv_bfloat16> {
  static constexpr bool kIs = true;
};
template <>
struct cudasim::Float16PairTraits<__nv_bfloat162> {
  static constexpr bool kIs = true;
};

using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;

inline __nv_bfloat16 __float2bfloat16(float x) { return __nv_bfloat16(x); }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return __nv_bfloat16(x); }
// Towards zero.
inline __nv_bfloat16 __float2bfloat16_rz(float x) {
  const __nv_bfloat16 nearest(x);
  const float back = nearest.ToFloat();
  const bool beyond = x < 0 ? back < x : back > x;
  return beyond ? __nv_bfloat16::FromBits(static_cast<uint16_t>(nearest.Bits() - 1)) : nearest;
}
inline __nv_bfloat16 __double2bfloat16(double x) { return __nv_bfloat16(x); }
inline __nv_bfloat16 __int2bfloat16_rn(int x) { return __nv_bfloat16(x); }
inline __nv_bfloat16 __uint2bfloat16_rn(unsigned x) { return __nv_bfloat16(x); }
inline float __bfloat162float(__nv_bfloat16 x) { return x.ToFloat(); }
inline int __bfloat162int_rn(__nv_bfloat16 x) {
  const float value = x.ToFloat();
  if (std::isnan(value)) return 0;
  if (value >= 0x1p31f) return 0x7fffffff;
  if (value < -0x1p31f) return -0x7fffffff - 1;
  return static_cast<int>(std::nearbyint(value));
}
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.Bits(); }  // NOLINT
inline short __bfloat16_as_short(__nv_bfloat16 x) {
  return static_cast<short>(x.Bits());
}  // NOLINT
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short x) {
  return __nv_bfloat16::FromBits(x);
}  // NOLINT
inline __nv_bfloat16 __short_as_bfloat16(short x) {  // NOLINT
  return __nv_bfloat16::FromBits(static_cast<uint16_t>(x));
}

inline __nv_bfloat162 __float2bfloat162_rn(float x) { return {__nv_bfloat16(x), __nv_bfloat16(x)}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__nv_bfloat16(x), __nv_bfloat16(y)};
}
inline __nv_bfloat162 __float22bfloat162_rn(float2 x) {
  return {__nv_bfloat16(x.x), __nv_bfloat16(x.y)};
}
inline float2 __bfloat1622float2(__nv_bfloat162 x) { return {x.x.ToFloat(), x.y.ToFloat()}; }
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 x) { return {x, x}; }
inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 x) { return x.x; }
inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 x) { return x.y; }
inline __nv_bfloat162 __low2bfloat162(__nv_bfloat162 x) { return {x.x, x.x}; }
inline __nv_bfloat162 __high2bfloat162(__nv_bfloat162 x) { return {x.y, x.y}; }
inline __nv_bfloat162 make_bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }

#endif  // CUDASIM_CUDA_BF16_H_
