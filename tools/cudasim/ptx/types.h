// PTX's types and state spaces.
#ifndef CUDASIM_PTX_TYPES_H_
#define CUDASIM_PTX_TYPES_H_

#include <cstdint>
#include <string_view>

namespace cudasim {
namespace ptx {

enum class Type : uint8_t {
  kNone,
  kPred,
  kB8,
  kB16,
  kB32,
  kB64,
  kB128,
  kU8,
  kU16,
  kU32,
  kU64,
  kS8,
  kS16,
  kS32,
  kS64,
  kF16,
  kF16x2,
  kBf16,
  kBf16x2,
  kTf32,
  kF32,
  kF64,
};

// "u32" is kU32; kNone for what is no type's name.
Type TypeNamed(std::string_view name);
std::string_view NameOf(Type type);
int BytesOf(Type type);  // 4 for kPred: a mask of lanes
bool IsSigned(Type type);
bool IsFloat(Type type);

// Registers differ by size alone: "may hold any type of their size".
enum class Width : uint8_t { kPred, k16, k32, k64 };
Width WidthOf(Type type);  // 8 bits are kept in registers of 16
// Of one register in all lanes of a warp.
inline int LaneBytes(Width width) {
  return width == Width::kPred ? 4 : 32 << static_cast<int>(width);
}

// Where an address points. Addresses of kGlobal and kConst are the host's.
enum class Space : uint8_t { kGeneric, kGlobal, kConst, kShared, kLocal, kParam };

// A generic address with these upper bits lies in one of the other spaces; no pointer of the host
// has them.
inline constexpr uint64_t kSharedWindow = uint64_t{1} << 60;
inline constexpr uint64_t kLocalWindow = uint64_t{2} << 60;
inline constexpr uint64_t kParamWindow = uint64_t{3} << 60;
inline constexpr uint64_t kWindowMask = uint64_t{15} << 60;
// 0 for global addresses.
uint64_t WindowOf(Space space);

}  // namespace ptx
}  // namespace cudasim

#endif  // CUDASIM_PTX_TYPES_H_
