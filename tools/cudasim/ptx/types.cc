#include "tools/cudasim/ptx/types.h"

#include <iterator>

namespace cudasim {
namespace ptx {
namespace {

struct Description {
  std::string_view name;
  int bytes;
};

// In the order of Type.
constexpr Description kTypes[] = {
    {"", 0},       {"pred", 4}, {"b8", 1},  {"b16", 2}, {"b32", 4},   {"b64", 8},
    {"b128", 16},  {"u8", 1},   {"u16", 2}, {"u32", 4}, {"u64", 8},   {"s8", 1},
    {"s16", 2},    {"s32", 4},  {"s64", 8}, {"f16", 2}, {"f16x2", 4}, {"bf16", 2},
    {"bf16x2", 4}, {"tf32", 4}, {"f32", 4}, {"f64", 8},
};
static_assert(std::size(kTypes) == static_cast<size_t>(Type::kF64) + 1);

}  // namespace

Type TypeNamed(std::string_view name) {
  for (size_t i = 1; i < std::size(kTypes); ++i) {
    if (kTypes[i].name == name) return static_cast<Type>(i);
  }
  return Type::kNone;
}

std::string_view NameOf(Type type) { return kTypes[static_cast<int>(type)].name; }
int BytesOf(Type type) { return kTypes[static_cast<int>(type)].bytes; }
bool IsSigned(Type type) { return type >= Type::kS8 && type <= Type::kS64; }
bool IsFloat(Type type) { return type >= Type::kF16; }

Width WidthOf(Type type) {
  if (type == Type::kPred) return Width::kPred;
  const int bytes = BytesOf(type);
  return bytes <= 2 ? Width::k16 : bytes == 4 ? Width::k32 : Width::k64;
}

uint64_t WindowOf(Space space) {
  switch (space) {
    case Space::kShared:
      return kSharedWindow;
    case Space::kLocal:
      return kLocalWindow;
    case Space::kParam:
      return kParamWindow;
    default:
      return 0;
  }
}

}  // namespace ptx
}  // namespace cudasim
