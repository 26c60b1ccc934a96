// float8 (e4m3 and e5m2): NVIDIA's names, on the host.
#ifndef CUDASIM_CUDA_FP8_H_
#define CUDASIM_CUDA_FP8_H_

#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "cudasim/float_formats.h"

using __nv_fp8_storage_t = unsigned char;
using __nv_fp8x2_storage_t = unsigned short;  // NOLINT: CUDA's type
using __nv_fp8x4_storage_t = unsigned int;

// What numbers beyond the largest become: NaN or infinity, or the largest number.
enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };

// Rounded to nearest even. e4m3 has no infinity: without saturation, what rounds beyond 448 is NaN.
inline __nv_fp8_storage_t __nv_cvt_double_to_fp8(double x, __nv_saturation_t saturate,
                                                 __nv_fp8_interpretation_t kind) {
  const bool e4m3 = kind == __NV_E4M3;
  if (cudasim::IsNan(x)) {
    // e5m2 keeps as many of the NaN's bits as it can.
    const uint32_t nan = e4m3 ? 0x7f : 0x7e | (cudasim::DoubleBits(x) >> 50 & 3);
    return static_cast<__nv_fp8_storage_t>(cudasim::SignBit(x, 7) | nan);
  }
  const uint32_t largest = e4m3 ? 0x7e : 0x7b;
  uint32_t magnitude = e4m3 ? cudasim::RoundMagnitude<3, 7>(x) : cudasim::RoundMagnitude<2, 15>(x);
  if (magnitude > largest) {
    magnitude = saturate == __NV_SATFINITE ? largest : e4m3 ? 0x7f : 0x7c;
  }
  return static_cast<__nv_fp8_storage_t>(cudasim::SignBit(x, 7) | magnitude);
}
inline __nv_fp8_storage_t __nv_cvt_float_to_fp8(float x, __nv_saturation_t saturate,
                                                __nv_fp8_interpretation_t kind) {
  if (x != x) return 0x7f;  // unlike a double's, without the sign
  return __nv_cvt_double_to_fp8(static_cast<double>(x), saturate, kind);
}
inline __nv_fp8x2_storage_t __nv_cvt_float2_to_fp8x2(float2 x, __nv_saturation_t saturate,
                                                     __nv_fp8_interpretation_t kind) {
  const unsigned low = __nv_cvt_float_to_fp8(x.x, saturate, kind);
  const unsigned high = __nv_cvt_float_to_fp8(x.y, saturate, kind);
  return static_cast<__nv_fp8x2_storage_t>(high << 8 | low);
}
inline __nv_fp8_storage_t __nv_cvt_halfraw_to_fp8(__half_raw x, __nv_saturation_t saturate,
                                                  __nv_fp8_interpretation_t kind) {
  return __nv_cvt_float_to_fp8(cudasim::HalfToFloat(x.x), saturate, kind);
}
inline __nv_fp8_storage_t __nv_cvt_bfloat16raw_to_fp8(__nv_bfloat16_raw x,
                                                      __nv_saturation_t saturate,
                                                      __nv_fp8_interpretation_t kind) {
  return __nv_cvt_float_to_fp8(cudasim::Bf16ToFloat(x.x), saturate, kind);
}

// e5m2 is the upper byte of an f16.
inline __half_raw __nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t x, __nv_fp8_interpretation_t kind) {
  if (kind == __NV_E5M2) {
    const auto bits = static_cast<unsigned short>(x << 8);                           // NOLINT
    return {(bits & 0x7fff) > 0x7c00 ? static_cast<unsigned short>(0x7fff) : bits};  // NOLINT
  }
  if ((x & 0x7f) == 0x7f) return {0x7fff};
  const int exponent = x >> 3 & 15;
  const int mantissa = x & 7;
  const double magnitude =
      exponent == 0 ? mantissa * 0x1p-9 : std::ldexp(8.0 + mantissa, exponent - 10);
  const uint16_t bits = cudasim::DoubleToHalf(magnitude);
  return {static_cast<unsigned short>((x & 0x80) << 8 | bits)};  // NOLINT
}
inline __half2_raw __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t x,
                                              __nv_fp8_interpretation_t kind) {
  return {__nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(x & 255), kind).x,
          __nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(x >> 8), kind).x};
}

namespace cudasim {

// One, two and four numbers. Conversions to them saturate.
template <__nv_fp8_interpretation_t kKind>
struct Fp8 {
  Fp8() = default;
  explicit Fp8(float x) : __x(__nv_cvt_float_to_fp8(x, __NV_SATFINITE, kKind)) {}
  explicit Fp8(double x) : __x(__nv_cvt_double_to_fp8(x, __NV_SATFINITE, kKind)) {}
  explicit Fp8(__half x) : Fp8(x.ToFloat()) {}
  explicit Fp8(__nv_bfloat16 x) : Fp8(x.ToFloat()) {}
  explicit operator float() const { return HalfToFloat(__nv_cvt_fp8_to_halfraw(__x, kKind).x); }
  explicit operator double() const { return static_cast<float>(*this); }
  explicit operator __half() const { return __nv_cvt_fp8_to_halfraw(__x, kKind); }
  explicit operator __nv_bfloat16() const { return __nv_bfloat16(static_cast<float>(*this)); }
  __nv_fp8_storage_t __x;
};

template <__nv_fp8_interpretation_t kKind>
struct alignas(2) Fp8x2 {
  Fp8x2() = default;
  explicit Fp8x2(float2 x) : __x(__nv_cvt_float2_to_fp8x2(x, __NV_SATFINITE, kKind)) {}
  explicit operator float2() const {
    const __half2_raw both = __nv_cvt_fp8x2_to_halfraw2(__x, kKind);
    return {HalfToFloat(both.x), HalfToFloat(both.y)};
  }
  __nv_fp8x2_storage_t __x;
};

template <__nv_fp8_interpretation_t kKind>
struct alignas(4) Fp8x4 {
  Fp8x4() = default;
  explicit Fp8x4(float4 x) {
    const unsigned low = __nv_cvt_float2_to_fp8x2({x.x, x.y}, __NV_SATFINITE, kKind);
    const unsigned high = __nv_cvt_float2_to_fp8x2({x.z, x.w}, __NV_SATFINITE, kKind);
    __x = high << 16 | low;
  }
  explicit operator float4() const {
    const auto low = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(__x), kKind);
    const auto high =
        __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(__x >> 16), kKind);
    return {HalfToFloat(low.x), HalfToFloat(low.y), HalfToFloat(high.x), HalfToFloat(high.y)};
  }
  __nv_fp8x4_storage_t __x;
};

}  // namespace cudasim

using __nv_fp8_e4m3 = cudasim::Fp8<__NV_E4M3>;
using __nv_fp8_e5m2 = cudasim::Fp8<__NV_E5M2>;
using __nv_fp8x2_e4m3 = cudasim::Fp8x2<__NV_E4M3>;
using __nv_fp8x2_e5m2 = cudasim::Fp8x2<__NV_E5M2>;
using __nv_fp8x4_e4m3 = cudasim::Fp8x4<__NV_E4M3>;
using __nv_fp8x4_e5m2 = cudasim::Fp8x4<__NV_E5M2>;

#endif  // CUDASIM_CUDA_FP8_H_
