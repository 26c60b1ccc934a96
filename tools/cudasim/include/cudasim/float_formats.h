// Conversions between float or double and the small floating-point formats, rounded to nearest
// even.
#ifndef CUDASIM_FLOAT_FORMATS_H_
#define CUDASIM_FLOAT_FORMATS_H_

#include <cstdint>
#include <cstring>

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace cudasim {

inline uint32_t FloatBits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}
inline float FloatFromBits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}
inline uint64_t DoubleBits(double x) {
  uint64_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

// Rounds |x| to a format with this many mantissa bits and this exponent bias. Returns the bits
// without the sign, as if the exponent had no upper limit. x is not NaN.
template <int kMantissa, int kBias>
uint32_t RoundMagnitude(double x) {
  const uint64_t bits = DoubleBits(x) & 0x7fffffffffffffffu;
  const int exponent = static_cast<int>(bits >> 52) - 1023;
  if (exponent == -1023) return 0;  // zero, or far below every format's least value
  if (exponent == 1024) return 0x7fffffffu;
  uint64_t significand = (bits & 0xfffffffffffffu) | 0x10000000000000u;
  // Bits to drop: more for subnormal results.
  int drop = 52 - kMantissa;
  int biased = exponent + kBias;
  if (biased < 1) {
    drop += 1 - biased;
    biased = 1;
  }
  if (drop > 54) return 0;
  const uint64_t kept = significand >> drop;
  const uint64_t rest = significand & ((uint64_t{1} << drop) - 1);
  const uint64_t half = uint64_t{1} << (drop - 1);
  const uint64_t rounded = kept + (rest > half || (rest == half && (kept & 1) != 0));
  // A carry moves into the exponent; a subnormal has no leading one.
  return (static_cast<uint32_t>(biased - 1) << kMantissa) + static_cast<uint32_t>(rounded);
}

// a * b + c with its last bit set if it is inexact ("round to odd"): rounding it again, to a format
// of at most 50 bits, gives the same as a single rounding.
inline double MultiplyAddToOdd(double a, double b, double c) {
  const double product = a * b;  // exact for factors of at most 26 bits
  const double sum = product + c;
  const double c_part = sum - product;
  const double error = (product - (sum - c_part)) + (c - c_part);
  uint64_t bits = DoubleBits(sum);
  if (error != 0 && error == error && (bits & 1) == 0 &&
      (bits & 0x7ff0000000000000u) != 0x7ff0000000000000u) {
    const bool away = (error > 0) == (sum > 0);
    bits += away ? 1 : ~uint64_t{0};
    double odd;
    std::memcpy(&odd, &bits, sizeof(odd));
    return odd;
  }
  return sum;
}

inline bool IsNan(double x) { return x != x; }
inline uint32_t SignBit(double x, int position) {
  return static_cast<uint32_t>(DoubleBits(x) >> 63) << position;
}

// bf16: NaN becomes 0x7fff, as on the GPU.
inline uint16_t FloatToBf16(float x) {
  const uint32_t bits = FloatBits(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
inline uint16_t DoubleToBf16(double x) {
  if (IsNan(x)) return 0x7fff;
  uint32_t magnitude = RoundMagnitude<7, 127>(x);
  if (magnitude > 0x7f80) magnitude = 0x7f80;
  return static_cast<uint16_t>(SignBit(x, 15) | magnitude);
}
inline float Bf16ToFloat(uint16_t bits) { return FloatFromBits(static_cast<uint32_t>(bits) << 16); }

// f16.
inline uint16_t DoubleToHalf(double x) {
  if (IsNan(x)) return 0x7fff;
  uint32_t magnitude = RoundMagnitude<10, 15>(x);
  if (magnitude > 0x7c00) magnitude = 0x7c00;
  return static_cast<uint16_t>(SignBit(x, 15) | magnitude);
}
inline uint16_t FloatToHalf(float x) {
#if defined(__F16C__)
  if (x != x) return 0x7fff;
  return static_cast<uint16_t>(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT));
#else
  return DoubleToHalf(static_cast<double>(x));
#endif
}
inline float HalfToFloatPortably(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = bits >> 10 & 31;
  const uint32_t mantissa = bits & 0x3ff;
  if (exponent == 31) return FloatFromBits(sign | 0x7f800000u | mantissa << 13);
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  return FloatFromBits(sign | (exponent + 112) << 23 | mantissa << 13);
}
inline float HalfToFloat(uint16_t bits) {
#if defined(__F16C__)
  return _cvtsh_ss(bits);
#else
  return HalfToFloatPortably(bits);
#endif
}

}  // namespace cudasim

#endif  // CUDASIM_FLOAT_FORMATS_H_
