// Arithmetic in f16 and bf16, and in pairs of them. Each operation is rounded once.
#include <cmath>

#include "cudasim/float_formats.h"
#include "tools/cudasim/ptx/bits.h"
#include "tools/cudasim/ptx/operations.h"

namespace cudasim {
namespace ptx {
namespace {

struct Half {
  static constexpr const char* kName = "f16";
  static double Value(uint16_t bits) { return HalfToFloat(bits); }
  static uint16_t Round(double x) { return DoubleToHalf(x); }
};

struct Bfloat {
  static constexpr const char* kName = "bf16";
  static double Value(uint16_t bits) { return Bf16ToFloat(bits); }
  static uint16_t Round(double x) { return DoubleToBf16(x); }
};

// NaN loses; -0 is below 0.
template <typename Format>
uint16_t Lesser(uint16_t a, uint16_t b, bool greater) {
  const double x = Format::Value(a), y = Format::Value(b);
  if (x != x) return y != y ? 0x7fff : b;
  if (y != y) return a;
  const bool first = x < y || (x == y && std::signbit(x));
  return first != greater ? a : b;
}

// Defines the operation for single values and for pairs.
template <typename F, typename... A>
void DefineBoth(OperationTable* t, const std::string& opcode, const std::string& format, F,
                uint16_t (F::*)(A...) const) {
  t->Define(opcode + "." + format, F{});
  const auto lanes = []<typename... B>(B... pairs) {
    return static_cast<uint32_t>(F{}(static_cast<uint16_t>(pairs >> 16)...)) << 16 |
           F{}(static_cast<uint16_t>(pairs)...);
  };
  using Pairs = decltype(lanes);
  const std::string pair = opcode + "." + format + "x2";
  using P = uint32_t;
  if constexpr (sizeof...(A) == 1) {
    t->Define(pair, [](P a) -> P { return Pairs{}(a); });
  } else if constexpr (sizeof...(A) == 2) {
    t->Define(pair, [](P a, P b) -> P { return Pairs{}(a, b); });
  } else {
    t->Define(pair, [](P a, P b, P c) -> P { return Pairs{}(a, b, c); });
  }
}

template <typename Format>
void DefineFormat(OperationTable* t) {
  const std::string format = Format::kName;
  const auto define = [&](const std::string& opcode, auto f) {
    DefineBoth(t, opcode, format, f, &decltype(f)::operator());
  };
  using T = uint16_t;
  using F = Format;
  define("add",
         [](T a, T b) -> T { return F::Round(MultiplyAddToOdd(F::Value(a), 1, F::Value(b))); });
  define("sub",
         [](T a, T b) -> T { return F::Round(MultiplyAddToOdd(F::Value(b), -1, F::Value(a))); });
  define("mul", [](T a, T b) -> T { return F::Round(F::Value(a) * F::Value(b)); });
  define("fma", [](T a, T b, T c) -> T {
    return F::Round(MultiplyAddToOdd(F::Value(a), F::Value(b), F::Value(c)));
  });
  define("fma.relu", [](T a, T b, T c) -> T {
    const double x = MultiplyAddToOdd(F::Value(a), F::Value(b), F::Value(c));
    return F::Round(x < 0 ? 0 : x);
  });
  define("neg", [](T a) -> T { return a ^ 0x8000; });
  define("abs", [](T a) -> T { return a & 0x7fff; });
  define("min", [](T a, T b) -> T { return Lesser<F>(a, b, false); });
  define("max", [](T a, T b) -> T { return Lesser<F>(a, b, true); });
  define("ex2.approx", [](T a) -> T { return F::Round(std::exp2(F::Value(a))); });
  define("tanh.approx", [](T a) -> T { return F::Round(std::tanh(F::Value(a))); });
  t->Alias("ex2.approx.ftz." + format, "ex2.approx." + format);
  t->Alias("ex2.approx.ftz." + format + "x2", "ex2.approx." + format + "x2");
  t->Define("setp.eq." + format, [](T a, T b) -> bool { return F::Value(a) == F::Value(b); });
  t->Define("setp.lt." + format, [](T a, T b) -> bool { return F::Value(a) < F::Value(b); });
  t->Define("setp.le." + format, [](T a, T b) -> bool { return F::Value(a) <= F::Value(b); });
  t->Define("setp.gt." + format, [](T a, T b) -> bool { return F::Value(a) > F::Value(b); });
  t->Define("setp.ge." + format, [](T a, T b) -> bool { return F::Value(a) >= F::Value(b); });
  t->Define("setp.neu." + format, [](T a, T b) -> bool { return F::Value(a) != F::Value(b); });
  t->Define("setp.nan." + format,
            [](T a, T b) -> bool { return IsNan(F::Value(a) + F::Value(b)); });
}

}  // namespace

void DefineSmallFloats(OperationTable* t) {
  DefineFormat<Half>(t);
  DefineFormat<Bfloat>(t);
}

const OperationTable& Operations() {
  static const auto* const table = [] {
    auto* const t = new OperationTable;
    DefineArithmetic(t);
    DefineComparisons(t);
    DefineConversions(t);
    DefineSmallFloats(t);
    return t;
  }();
  return *table;
}

}  // namespace ptx
}  // namespace cudasim
