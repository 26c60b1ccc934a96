// Element types, and the 16- and 8-bit floats as host types. Usable from .cu files.
#pragma once

#include <bit>
#include <cstdint>
#include <iosfwd>
#include <string_view>

namespace lockstep {

enum class DType : uint8_t {
  kF64,
  kF32,
  kF16,
  kBF16,
  kF8E4M3,
  kF8E5M2,
  kI64,
  kI32,
  kU16,
  kU8,
  kBool
};

constexpr int kNumDTypes = 11;

// Bytes of one element.
int64_t SizeOf(DType dtype);
// "f32", "bf16", ...
std::string_view Name(DType dtype);
// The inverse of Name; throws ArgumentError listing the names.
DType ParseDType(std::string_view name);
bool IsFloating(DType dtype);
// What sums and statistics of elements of `dtype` are computed and kept in: f64 for f64, f32 for
// the rest (Acc<T> of kernels).
constexpr DType AccumulationDType(DType dtype) {
  return dtype == DType::kF64 ? DType::kF64 : DType::kF32;
}
std::ostream& operator<<(std::ostream& out, DType dtype);

// bfloat16: the upper half of an f32, rounded to nearest even; NaN stays NaN.
struct BF16 {
  uint16_t bits = 0;
  BF16() = default;
  explicit BF16(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value);
    bits = (u & 0x7fffffffu) > 0x7f800000u
               ? static_cast<uint16_t>((u >> 16) | 0x40u)
               : static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
  explicit operator float() const {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
  explicit operator double() const { return static_cast<float>(*this); }
  bool operator==(const BF16&) const = default;
};

// IEEE 754 binary16, rounded to nearest even; NaN stays NaN. Without branches that depend on the
// value, so that compilers vectorise loops over it.
struct F16 {
  uint16_t bits = 0;
  F16() = default;
  explicit F16(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value);
    const uint32_t magnitude = u & 0x7fffffffu;
    const uint32_t normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
    // A subnormal half: adding 0.5 shifts and rounds in hardware.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    const uint32_t small = std::bit_cast<uint32_t>(shifted) - 0x3f000000u;
    uint32_t half = magnitude < 0x38800000u ? small : normal;
    half = magnitude >= 0x477ff000u ? 0x7c00u : half;  // rounds past 65504
    half = magnitude > 0x7f800000u ? 0x7e00u : half;   // NaN, whatever its payload
    bits = static_cast<uint16_t>(((u >> 16) & 0x8000u) | half);
  }
  explicit operator float() const {
    const uint32_t magnitude = bits & 0x7fffu;
    // As an f32 with the same exponent bits it is too small by the difference of the biases.
    const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
    const uint32_t infinite = magnitude >= 0x7c00u ? 0x7f800000u : 0u;
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(scaled) | infinite | sign);
  }
  explicit operator double() const { return static_cast<float>(*this); }
  bool operator==(const F16&) const = default;
};

// OCP's 8-bit floats, rounded to nearest even. Values that are too large become infinity, or NaN in
// E4M3, which has no infinity and ends at 448.
struct F8E4M3 {
  uint8_t bits = 0;
  F8E4M3() = default;
  explicit F8E4M3(float value);
  explicit operator float() const;
  explicit operator double() const { return static_cast<float>(*this); }
  bool operator==(const F8E4M3&) const = default;
};
struct F8E5M2 {
  uint8_t bits = 0;
  F8E5M2() = default;
  explicit F8E5M2(float value);
  explicit operator float() const;
  explicit operator double() const { return static_cast<float>(*this); }
  bool operator==(const F8E5M2&) const = default;
};

// DTypeOf<float> == DType::kF32, ...
template <class T>
struct DTypeOfImpl;
template <>
struct DTypeOfImpl<double> {
  static constexpr DType value = DType::kF64;
};
template <>
struct DTypeOfImpl<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOfImpl<F16> {
  static constexpr DType value = DType::kF16;
};
template <>
struct DTypeOfImpl<BF16> {
  static constexpr DType value = DType::kBF16;
};
template <>
struct DTypeOfImpl<F8E4M3> {
  static constexpr DType value = DType::kF8E4M3;
};
template <>
struct DTypeOfImpl<F8E5M2> {
  static constexpr DType value = DType::kF8E5M2;
};
template <>
struct DTypeOfImpl<int64_t> {
  static constexpr DType value = DType::kI64;
};
template <>
struct DTypeOfImpl<int32_t> {
  static constexpr DType value = DType::kI32;
};
template <>
struct DTypeOfImpl<uint16_t> {
  static constexpr DType value = DType::kU16;
};
template <>
struct DTypeOfImpl<uint8_t> {
  static constexpr DType value = DType::kU8;
};
template <>
struct DTypeOfImpl<bool> {
  static constexpr DType value = DType::kBool;
};
template <class T>
inline constexpr DType DTypeOf = DTypeOfImpl<T>::value;

// The type in which T is accumulated: f64 for f64, f32 for everything else.
template <class T>
struct AccImpl {
  using type = float;
};
template <>
struct AccImpl<double> {
  using type = double;
};
template <class T>
using Acc = typename AccImpl<T>::type;

}  // namespace lockstep
