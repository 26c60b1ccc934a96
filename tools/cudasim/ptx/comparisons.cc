// setp and what it is made of: a comparison gives a mask of lanes.
#include "tools/cudasim/ptx/bits.h"
#include "tools/cudasim/ptx/operations.h"

namespace cudasim {
namespace ptx {
namespace {

template <typename T>
void DefineComparison(OperationTable* t, const std::string& type) {
  t->Define("setp.eq." + type, [](T a, T b) -> bool { return a == b; });
  t->Define("setp.lt." + type, [](T a, T b) -> bool { return a < b; });
  t->Define("setp.le." + type, [](T a, T b) -> bool { return a <= b; });
  t->Define("setp.gt." + type, [](T a, T b) -> bool { return a > b; });
  t->Define("setp.ge." + type, [](T a, T b) -> bool { return a >= b; });
  if constexpr (std::is_floating_point_v<T>) {
    // Ordered: false if an argument is NaN. Those with a u are true.
    t->Define("setp.ne." + type, [](T a, T b) -> bool { return a < b || a > b; });
    t->Define("setp.equ." + type, [](T a, T b) -> bool { return !(a < b || a > b); });
    t->Define("setp.neu." + type, [](T a, T b) -> bool { return a != b; });
    t->Define("setp.ltu." + type, [](T a, T b) -> bool { return !(a >= b); });
    t->Define("setp.leu." + type, [](T a, T b) -> bool { return !(a > b); });
    t->Define("setp.gtu." + type, [](T a, T b) -> bool { return !(a <= b); });
    t->Define("setp.geu." + type, [](T a, T b) -> bool { return !(a < b); });
    t->Define("setp.num." + type, [](T a, T b) -> bool { return a == a && b == b; });
    t->Define("setp.nan." + type, [](T a, T b) -> bool { return a != a || b != b; });
  } else {
    t->Define("setp.ne." + type, [](T a, T b) -> bool { return a != b; });
  }
  if constexpr (std::is_unsigned_v<T>) {
    t->Alias("setp.lo." + type, "setp.lt." + type);
    t->Alias("setp.ls." + type, "setp.le." + type);
    t->Alias("setp.hi." + type, "setp.gt." + type);
    t->Alias("setp.hs." + type, "setp.ge." + type);
    const std::string bits = "b" + type.substr(1);
    t->Alias("setp.eq." + bits, "setp.eq." + type);
    t->Alias("setp.ne." + bits, "setp.ne." + type);
  }
}

}  // namespace

void DefineComparisons(OperationTable* t) {
  DefineComparison<uint16_t>(t, "u16");
  DefineComparison<int16_t>(t, "s16");
  DefineComparison<uint32_t>(t, "u32");
  DefineComparison<int32_t>(t, "s32");
  DefineComparison<uint64_t>(t, "u64");
  DefineComparison<int64_t>(t, "s64");
  DefineComparison<float>(t, "f32");
  DefineComparison<double>(t, "f64");
}

}  // namespace ptx
}  // namespace cudasim
