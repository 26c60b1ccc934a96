#include "core/dtype.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <ostream>

#include "core/error.h"

namespace lockstep {
namespace {

struct DTypeInfo {
  std::string_view name;
  int64_t size;
  bool floating;
};

constexpr std::array<DTypeInfo, kNumDTypes> kInfo = {{{"f64", 8, true},
                                                      {"f32", 4, true},
                                                      {"f16", 2, true},
                                                      {"bf16", 2, true},
                                                      {"f8e4m3", 1, true},
                                                      {"f8e5m2", 1, true},
                                                      {"i64", 8, false},
                                                      {"i32", 4, false},
                                                      {"u16", 2, false},
                                                      {"u8", 1, false},
                                                      {"bool", 1, false}}};

const DTypeInfo& Info(DType dtype) { return kInfo[static_cast<size_t>(dtype)]; }

// The format has a sign, `exponent` bits with the usual bias, and `mantissa` bits. `beyond`: the
// bits of a value that is too large, which follow those of the largest number.
uint8_t ToBits(float value, int exponent, int mantissa, int beyond) {
  const int sign = std::signbit(value) ? 0x80 : 0;
  if (std::isnan(value)) return static_cast<uint8_t>(sign | 0x7f);
  if (std::isinf(value)) return static_cast<uint8_t>(sign | beyond);
  if (value == 0) return static_cast<uint8_t>(sign);
  const int bias = (1 << (exponent - 1)) - 1;
  int power = 0;
  std::frexp(value, &power);
  power = std::max(power - 1, 1 - bias);  // subnormal numbers share the smallest exponent
  // Rounding up to the next power of two carries into the exponent.
  const int units =
      static_cast<int>(std::nearbyint(std::ldexp(std::fabs(value), mantissa - power)));
  const int bits = ((std::min(power, 64) + bias - 1) << mantissa) + units;
  return static_cast<uint8_t>(sign | std::min(bits, beyond));
}

float FromBits(uint8_t bits, int exponent, int mantissa) {
  const int bias = (1 << (exponent - 1)) - 1;
  const int power = (bits & 0x7f) >> mantissa, fraction = bits & ((1 << mantissa) - 1);
  const float size = power == 0 ? std::ldexp(static_cast<float>(fraction), 1 - bias - mantissa)
                                : std::ldexp(static_cast<float>(fraction + (1 << mantissa)),
                                             power - bias - mantissa);
  return (bits & 0x80) != 0 ? -size : size;
}

}  // namespace

int64_t SizeOf(DType dtype) { return Info(dtype).size; }
std::string_view Name(DType dtype) { return Info(dtype).name; }
bool IsFloating(DType dtype) { return Info(dtype).floating; }
std::ostream& operator<<(std::ostream& out, DType dtype) { return out << Name(dtype); }

DType ParseDType(std::string_view name) {
  std::string known;
  for (int i = 0; i < kNumDTypes; ++i) {
    if (kInfo[i].name == name) return static_cast<DType>(i);
    known += (i ? ", " : "") + std::string(kInfo[i].name);
  }
  throw ArgumentError(StrCat("unknown dtype '", name, "'; use one of ", known));
}

F8E4M3::F8E4M3(float value) : bits(ToBits(value, 4, 3, 0x7f)) {}
F8E4M3::operator float() const { return (bits & 0x7f) == 0x7f ? NAN : FromBits(bits, 4, 3); }

F8E5M2::F8E5M2(float value) : bits(ToBits(value, 5, 2, 0x7c)) {}
F8E5M2::operator float() const {
  if ((bits & 0x7f) > 0x7c) return NAN;
  if ((bits & 0x7f) == 0x7c) return (bits & 0x80) != 0 ? -INFINITY : INFINITY;
  return FromBits(bits, 5, 2);
}

}  // namespace lockstep
