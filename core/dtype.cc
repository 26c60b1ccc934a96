#include "core/dtype.h"

#include <array>
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

F16::F16(float value) {
  const uint32_t u = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (u >> 16) & 0x8000u;
  const uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {  // NaN: keep it one, whatever its payload
    bits = static_cast<uint16_t>(sign | 0x7e00u);
  } else if (magnitude >= 0x477ff000u) {  // rounds past 65504
    bits = static_cast<uint16_t>(sign | 0x7c00u);
  } else if (magnitude < 0x38800000u) {  // subnormal half: adding 0.5 shifts and rounds in hardware
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    bits = static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  } else {
    const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    bits = static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
  }
}

F16::operator float() const {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  const uint32_t wide = exponent == 31 ? 0xffu : exponent + 112u;
  return std::bit_cast<float>(sign | (wide << 23) | (mantissa << 13));
}

}  // namespace lockstep
