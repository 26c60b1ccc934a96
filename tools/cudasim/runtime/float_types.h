// Conversions between f32 and NVIDIA's small floating types, rounded to nearest even.
#ifndef CUDASIM_RUNTIME_FLOAT_TYPES_H_
#define CUDASIM_RUNTIME_FLOAT_TYPES_H_

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace cudasim::runtime {

inline float FromBf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

inline uint16_t ToBf16(float value) {
  if (std::isnan(value)) return 0x7fff;
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// A float with a sign, `exponent` and `mantissa` bits, whose largest exponent means infinity and
// NaN unless `finite`, where only the number with all bits set is a NaN (e4m3).
inline float Decode(uint32_t bits, int exponent, int mantissa, bool finite) {
  const uint32_t fraction = bits & ((1u << mantissa) - 1);
  const int power = static_cast<int>((bits >> mantissa) & ((1u << exponent) - 1));
  const int largest = (1 << exponent) - 1;
  const int bias = (1 << (exponent - 1)) - 1;
  float value = 0;
  if (power == largest && !finite) {
    value = fraction == 0 ? std::numeric_limits<float>::infinity()
                          : std::numeric_limits<float>::quiet_NaN();
  } else if (power == largest && fraction == (1u << mantissa) - 1) {
    value = std::numeric_limits<float>::quiet_NaN();
  } else if (power == 0) {
    value = std::ldexp(static_cast<float>(fraction), 1 - bias - mantissa);
  } else {
    value = std::ldexp(static_cast<float>(fraction | (1u << mantissa)), power - bias - mantissa);
  }
  return ((bits >> (exponent + mantissa)) & 1) != 0 ? -value : value;
}

inline float FromHalf(uint16_t bits) { return Decode(bits, 5, 10, false); }
inline float FromE4m3(uint8_t bits) { return Decode(bits, 4, 3, true); }
inline float FromE5m2(uint8_t bits) { return Decode(bits, 5, 2, false); }

inline uint16_t ToHalf(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  if (std::isnan(value)) return 0x7fff;
  const float size = std::fabs(value);
  if (size >= 65520.0f) return sign | 0x7c00;
  if (size < std::ldexp(1.0f, -14)) {
    // Subnormal: a multiple of 2^-24; 1024 of them are the smallest normal number.
    return sign | static_cast<uint16_t>(std::nearbyint(std::ldexp(size, 24)));
  }
  const uint32_t rounded = (bits & 0x7fffffff) + 0xfff + ((bits >> 13) & 1);
  return sign | static_cast<uint16_t>((rounded - (112u << 23)) >> 13);
}

// As the tensor cores' TF32: 10 bits of mantissa, rounded to nearest, ties away from zero.
inline float ToTf32(float value) {
  if (!std::isfinite(value)) return value;
  const auto bits = std::bit_cast<uint32_t>(value);
  return std::bit_cast<float>((bits + 0x1000) & 0xffffe000u);
}

}  // namespace cudasim::runtime

#endif  // CUDASIM_RUNTIME_FLOAT_TYPES_H_
