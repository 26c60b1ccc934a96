// Integers, bits, and floating-point arithmetic in f32 and f64. Everything is exact but for the
// functions named approx: those are within PTX's bounds of error, and may differ from a GPU's bits.
#include <algorithm>
#include <cmath>

#include "tools/cudasim/ptx/bits.h"
#include "tools/cudasim/ptx/operations.h"

namespace cudasim {
namespace ptx {
namespace {

// What is below is inlined into loops over lanes, which then become vector code.

// Integer arithmetic wraps.
template <typename T>
using Wrapping = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

template <typename T>
[[gnu::always_inline]] inline T Divide(T a, T b) {
  if constexpr (sizeof(T) <= 4) {
    // The quotient in double, rounded towards zero, is exact; vectors have no integer division.
    const T q = static_cast<T>(static_cast<int64_t>(static_cast<double>(a) / (b == 0 ? 1 : b)));
    return b == 0 ? static_cast<T>(~T{0}) : q;
  } else {
    if (b == 0) return ~T{0};
    if (std::is_signed_v<T> && b == static_cast<T>(-1)) return static_cast<T>(Wrapping<T>{0} - a);
    return a / b;
  }
}

template <typename T>
[[gnu::always_inline]] inline T Remainder(T a, T b) {
  if (b == 0) return a;
  return static_cast<T>(static_cast<Wrapping<T>>(a) - static_cast<Wrapping<T>>(Divide(a, b)) * b);
}

template <typename T>
[[gnu::always_inline]] inline T HighProduct(T a, T b) {
  if constexpr (sizeof(T) == 8) {
    using Wide = std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>;
    return static_cast<T>(static_cast<Wide>(a) * b >> 64);
  } else {
    using Wide = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
    return static_cast<T>(static_cast<Wide>(a) * b >> (8 * sizeof(T)));
  }
}

template <typename T>
[[gnu::always_inline]] inline T ShiftLeft(T a, uint32_t by) {
  return by >= 8 * sizeof(T) ? 0 : static_cast<T>(static_cast<Wrapping<T>>(a) << by);
}

template <typename T>
[[gnu::always_inline]] inline T ShiftRight(T a, uint32_t by) {
  constexpr uint32_t kBits = 8 * sizeof(T);
  if constexpr (std::is_signed_v<T>) {
    return static_cast<T>(a >> (by < kBits ? by : kBits - 1));
  } else {
    return by >= kBits ? 0 : static_cast<T>(a >> by);
  }
}

template <typename T>
void DefineInteger(OperationTable* t) {
  const std::string type = Suffix<T>();
  using U = Wrapping<T>;
  t->Define("add" + type, [](T a, T b) -> T { return static_cast<T>(U(a) + U(b)); });
  t->Define("sub" + type, [](T a, T b) -> T { return static_cast<T>(U(a) - U(b)); });
  t->Define("mul.lo" + type, [](T a, T b) -> T { return static_cast<T>(U(a) * U(b)); });
  t->Define("mul.hi" + type, [](T a, T b) -> T { return HighProduct(a, b); });
  t->Define("mad.lo" + type, [](T a, T b, T c) -> T { return static_cast<T>(U(a) * U(b) + U(c)); });
  t->Define("mad.hi" + type,
            [](T a, T b, T c) -> T { return static_cast<T>(U(HighProduct(a, b)) + U(c)); });
  t->Define("div" + type, [](T a, T b) -> T { return Divide(a, b); });
  t->Define("rem" + type, [](T a, T b) -> T { return Remainder(a, b); });
  t->Define("min" + type, [](T a, T b) -> T { return a < b ? a : b; });
  t->Define("max" + type, [](T a, T b) -> T { return a > b ? a : b; });
  t->Define("shr" + type, [](T a, uint32_t by) -> T { return ShiftRight(a, by); });
  t->Define("sad" + type, [](T a, T b, T c) -> T {
    return static_cast<T>(U(c) + (a < b ? U(b) - U(a) : U(a) - U(b)));
  });
  if constexpr (std::is_signed_v<T>) {
    t->Define("neg" + type, [](T a) -> T { return static_cast<T>(U{0} - U(a)); });
    t->Define("abs" + type, [](T a) -> T { return static_cast<T>(a < 0 ? U{0} - U(a) : U(a)); });
  }
  if constexpr (sizeof(T) < 8) {
    using Wide = std::conditional_t<sizeof(T) == 2,
                                    std::conditional_t<std::is_signed_v<T>, int32_t, uint32_t>,
                                    std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>>;
    t->Define("mul.wide" + type,
              [](T a, T b) -> Wide { return static_cast<Wide>(a) * static_cast<Wide>(b); });
    t->Define("mad.wide" + type, [](T a, T b, Wide c) -> Wide {
      using V = std::make_unsigned_t<Wide>;
      return static_cast<Wide>(V(static_cast<Wide>(a) * static_cast<Wide>(b)) + V(c));
    });
  }
}

template <typename T>
void DefineBits(OperationTable* t) {
  const std::string type = ".b" + std::to_string(8 * sizeof(T));
  t->Define("and" + type, [](T a, T b) -> T { return a & b; });
  t->Define("or" + type, [](T a, T b) -> T { return a | b; });
  t->Define("xor" + type, [](T a, T b) -> T { return a ^ b; });
  t->Define("not" + type, [](T a) -> T { return static_cast<T>(~a); });
  t->Define("cnot" + type, [](T a) -> T { return a == 0; });
  t->Define("shl" + type, [](T a, uint32_t by) -> T { return ShiftLeft(a, by); });
  t->Alias("shr" + type, "shr.u" + std::to_string(8 * sizeof(T)));
  t->Define("mov" + type, [](T a) -> T { return a; });
}

// Bits `length` of a from `position` on, extended by the sign of the last of them.
template <typename T>
T ExtractBits(T a, uint32_t position, uint32_t length) {
  constexpr uint32_t kBits = 8 * sizeof(T);
  using U = std::make_unsigned_t<T>;
  position &= 255;
  length &= 255;
  if (length == 0) return 0;
  const uint32_t last = std::min(position + length - 1, kBits - 1);
  const bool sign = std::is_signed_v<T> && (static_cast<U>(a) >> last & 1) != 0;
  U result = position < kBits ? static_cast<U>(a) >> position : 0;
  const uint32_t kept = position < kBits ? std::min(length, kBits - position) : 0;
  if (kept < kBits) {
    const U low = (U{1} << kept) - 1;
    result = (result & low) | (sign ? ~low : 0);
  }
  return static_cast<T>(result);
}

// The number of the highest bit that differs from the sign; all ones if there is none.
template <typename T>
uint32_t FindBit(T a) {
  using U = std::make_unsigned_t<T>;
  const U bits = std::is_signed_v<T> && a < 0 ? ~static_cast<U>(a) : static_cast<U>(a);
  return bits == 0 ? ~0u : 8 * sizeof(T) - 1 - std::countl_zero(bits);
}

uint32_t PermuteBytes(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
  uint32_t result = 0;
  for (int j = 0; j < 4; ++j) {
    const uint32_t choice = selector >> (4 * j) & 15;
    uint32_t byte = bytes >> (8 * (choice & 7)) & 255;
    if (choice & 8) byte = byte & 128 ? 255 : 0;
    result |= byte << (8 * j);
  }
  return result;
}

template <typename A, typename B>
void DefineDotProducts(OperationTable* t, const std::string& types) {
  t->Define("dp4a" + types, [](uint32_t a, uint32_t b, uint32_t c) -> uint32_t {
    for (int j = 0; j < 32; j += 8) c += static_cast<A>(a >> j) * static_cast<B>(b >> j);
    return c;
  });
}

template <typename T>
void DefineWords(OperationTable* t) {
  using U = std::make_unsigned_t<T>;
  const std::string type = Suffix<T>(), bits = ".b" + std::to_string(8 * sizeof(T));
  t->Define("bfe" + type, [](T a, uint32_t b, uint32_t c) -> T { return ExtractBits(a, b, c); });
  t->Define("bfind" + type, [](T a) -> uint32_t { return FindBit(a); });
  t->Define("bfind.shiftamt" + type, [](T a) -> uint32_t {
    const uint32_t bit = FindBit(a);
    return bit == ~0u ? bit : 8 * sizeof(T) - 1 - bit;
  });
  t->Define("popc" + bits, [](U a) -> uint32_t { return std::popcount(a); });
  t->Define("clz" + bits, [](U a) -> uint32_t { return std::countl_zero(a); });
  t->Define("brev" + bits, [](U a) -> U {
    U result = 0;
    for (size_t j = 0; j < 8 * sizeof(U); ++j) result |= (a >> j & 1) << (8 * sizeof(U) - 1 - j);
    return result;
  });
}

void DefineOtherWords(OperationTable* t) {
  t->Define("prmt.b32",
            [](uint32_t a, uint32_t b, uint32_t c) -> uint32_t { return PermuteBytes(a, b, c); });
  using U = uint32_t;
  t->Define("shf.l.wrap.b32", [](U a, U b, U c) -> U {
    return static_cast<U>((uint64_t{b} << 32 | a) << (c & 31) >> 32);
  });
  t->Define("shf.r.wrap.b32",
            [](U a, U b, U c) -> U { return static_cast<U>((uint64_t{b} << 32 | a) >> (c & 31)); });
  t->Define("shf.l.clamp.b32", [](U a, U b, U c) -> U {
    return c >= 32 ? a : static_cast<U>((uint64_t{b} << 32 | a) << c >> 32);
  });
  t->Define("shf.r.clamp.b32", [](U a, U b, U c) -> U {
    return c >= 32 ? b : static_cast<U>((uint64_t{b} << 32 | a) >> c);
  });
  t->Define("mul24.lo.u32", [](U a, U b) -> U { return (a & 0xffffff) * (b & 0xffffff); });
  t->Define("mul24.lo.s32", [](int32_t a, int32_t b) -> int32_t {
    return static_cast<int32_t>(static_cast<U>(a << 8 >> 8) * static_cast<U>(b << 8 >> 8));
  });
  t->Define("add.sat.s32", [](int32_t a, int32_t b) -> int32_t {
    const int64_t sum = int64_t{a} + b;
    return static_cast<int32_t>(std::clamp<int64_t>(sum, INT32_MIN, INT32_MAX));
  });
  t->Define("sub.sat.s32", [](int32_t a, int32_t b) -> int32_t {
    const int64_t difference = int64_t{a} - b;
    return static_cast<int32_t>(std::clamp<int64_t>(difference, INT32_MIN, INT32_MAX));
  });
  DefineDotProducts<uint8_t, uint8_t>(t, ".u32.u32");
  DefineDotProducts<int8_t, int8_t>(t, ".s32.s32");
  DefineDotProducts<uint8_t, int8_t>(t, ".u32.s32");
  DefineDotProducts<int8_t, uint8_t>(t, ".s32.u32");
}

// Of two equal values, of which one may be -0, the one with (or without) the sign; NaN loses.
template <typename T>
[[gnu::always_inline]] inline T Minimum(T a, T b) {
  T result = a < b ? a : b;
  result = a == b ? std::bit_cast<T>(BitsOf(a) | BitsOf(b)) : result;
  result = a != a ? b : result;
  return Canonical(b != b ? a : result);
}

template <typename T>
[[gnu::always_inline]] inline T Maximum(T a, T b) {
  T result = a > b ? a : b;
  result = a == b ? std::bit_cast<T>(BitsOf(a) & BitsOf(b)) : result;
  result = a != a ? b : result;
  return Canonical(b != b ? a : result);
}

float Fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
double Fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
float Sqrt(float x) { return __builtin_sqrtf(x); }
double Sqrt(double x) { return __builtin_sqrt(x); }

template <typename T>
void DefineFloat(OperationTable* t) {
  using U = BitsType<T>;
  constexpr U kSign = U{1} << (8 * sizeof(T) - 1);
  const std::string type = Suffix<T>();
  t->Define("add" + type, [](T a, T b) -> T { return Canonical(a + b); });
  t->Define("sub" + type, [](T a, T b) -> T { return Canonical(a - b); });
  t->Define("mul" + type, [](T a, T b) -> T { return Canonical(a * b); });
  t->Define("fma" + type, [](T a, T b, T c) -> T { return Canonical(Fma(a, b, c)); });
  t->Define("div" + type, [](T a, T b) -> T { return Canonical(a / b); });
  t->Define("rcp" + type, [](T a) -> T { return Canonical(T{1} / a); });
  t->Define("sqrt" + type, [](T a) -> T { return Canonical(Sqrt(a)); });
  t->Define("neg" + type, [](T a) -> T { return std::bit_cast<T>(BitsOf(a) ^ kSign); });
  t->Define("abs" + type, [](T a) -> T { return std::bit_cast<T>(BitsOf(a) & ~kSign); });
  t->Define("min" + type, [](T a, T b) -> T { return Minimum(a, b); });
  t->Define("max" + type, [](T a, T b) -> T { return Maximum(a, b); });
  t->Define("min.NaN" + type,
            [](T a, T b) -> T { return a != a || b != b ? Canonical(a + b) : Minimum(a, b); });
  t->Define("max.NaN" + type,
            [](T a, T b) -> T { return a != a || b != b ? Canonical(a + b) : Maximum(a, b); });
  // The sign is a's, unlike in C.
  t->Define("copysign" + type, [](T a, T b) -> T {
    return std::bit_cast<T>((BitsOf(a) & kSign) | (BitsOf(b) & ~kSign));
  });
  // Into [0, 1]; NaN becomes 0.
  t->Define("saturate" + type, [](T a) -> T {
    const T positive = a > T{0} ? a : T{0};
    return positive < T{1} ? positive : T{1};
  });
  t->Define("testp.finite" + type, [](T a) -> bool { return a - a == T{0}; });
  t->Define("testp.infinite" + type, [](T a) -> bool { return a == a && a - a != T{0}; });
  t->Define("testp.notanumber" + type, [](T a) -> bool { return a != a; });
  t->Define("testp.number" + type, [](T a) -> bool { return a == a; });
  t->Alias("mad" + type, "fma" + type);
}

// Within 2 units in the last place.
[[gnu::always_inline]] inline float Exp2(float x) {
  float clamped = x > -150.0f ? x : -150.0f;
  clamped = clamped < 128.5f ? clamped : 128.5f;
  const float whole = __builtin_rintf(clamped), rest = clamped - whole;
  float p = 1.5352920e-4f;
  p = Fma(p, rest, 1.3398874e-3f);
  p = Fma(p, rest, 9.6181291e-3f);
  p = Fma(p, rest, 5.5503324e-2f);
  p = Fma(p, rest, 2.4022648e-1f);
  p = Fma(p, rest, 6.9314718e-1f);
  p = Fma(p, rest, 1.0f);
  // In two steps, since 2^128 and 2^-140 are no normal numbers.
  const auto exponent = static_cast<int32_t>(whole), half = exponent >> 1;
  const float first = FloatOf(static_cast<uint32_t>(half + 127) << 23);
  const float second = FloatOf(static_cast<uint32_t>(exponent - half + 127) << 23);
  return x == x ? p * first * second : Canonical(x);
}

// Within 2^-22 of the logarithm where that is in [-1, 1], else within 2 units in the last place.
[[gnu::always_inline]] inline float Log2(float x) {
  const bool subnormal = x < 0x1p-126f;
  const float scaled = subnormal ? x * 0x1p24f : x;
  const uint32_t bits = BitsOf(scaled);
  const auto exponent = static_cast<int32_t>(bits - 0x3f3504f3u) >> 23;  // of [sqrt(1/2), sqrt(2))
  const float m = FloatOf(bits - (static_cast<uint32_t>(exponent) << 23));
  // log2(m) = 2 / ln(2) * atanh(s).
  const float s = (m - 1.0f) / (m + 1.0f), s2 = s * s;
  float p = 0.320598897f;
  p = Fma(p, s2, 0.412198583f);
  p = Fma(p, s2, 0.577078016f);
  p = Fma(p, s2, 0.961796694f);
  p = Fma(p * s2, s, 2.88539008f * s);
  const float result = p + static_cast<float>(exponent - (subnormal ? 24 : 0));
  const float special = x == 0 ? -std::numeric_limits<float>::infinity()
                               : (x > 0 ? x : FloatOf(0x7fffffff));  // infinite, NaN or negative
  return x > 0 && x < std::numeric_limits<float>::infinity() ? result : special;
}

[[gnu::always_inline]] inline float FlushSubnormal(float x) {
  return FloatOf(BitsOf(x) & 0x7f800000u ? BitsOf(x) : BitsOf(x) & 0x80000000u);
}

// a / b within 2 units in the last place where 2^-126 <= |b| <= 2^126, and beyond a zero.
[[gnu::always_inline]] inline float DivideApproximately(float a, float b) {
  const float magnitude = FloatOf(BitsOf(b) & 0x7fffffffu);
  const bool huge = magnitude > 0x1p126f && magnitude < std::numeric_limits<float>::infinity();
  return Canonical(huge ? a * (b * 0.0f) : a / b);
}

void DefineApproximations(OperationTable* t) {
  t->Define("ex2.approx.f32", [](float a) -> float { return Exp2(a); });
  t->Define("lg2.approx.f32", [](float a) -> float { return Log2(a); });
  t->Define("rcp.approx.f32", [](float a) -> float { return Canonical(1.0f / a); });
  t->Define("sqrt.approx.f32", [](float a) -> float { return Canonical(Sqrt(a)); });
  t->Define("rsqrt.approx.f32", [](float a) -> float { return Canonical(1.0f / Sqrt(a)); });
  t->Define("sin.approx.f32", [](float a) -> float { return Canonical(std::sin(a)); });
  t->Define("cos.approx.f32", [](float a) -> float { return Canonical(std::cos(a)); });
  t->Define("tanh.approx.f32", [](float a) -> float { return Canonical(std::tanh(a)); });
  t->Define("div.approx.f32", [](float a, float b) -> float { return DivideApproximately(a, b); });
  t->Define("div.full.f32", [](float a, float b) -> float { return Canonical(a / b); });
  // Flushing subnormal numbers by the processor's mode would cost more than the function.
  t->Define("ex2.approx.ftz.f32",
            [](float a) -> float { return FlushSubnormal(Exp2(FlushSubnormal(a))); });
  t->Define("lg2.approx.ftz.f32", [](float a) -> float { return Log2(FlushSubnormal(a)); });
  t->Define("rcp.approx.ftz.f32",
            [](float a) -> float { return FlushSubnormal(Canonical(1.0f / FlushSubnormal(a))); });
  t->Define("rsqrt.approx.ftz.f32",
            [](float a) -> float { return Canonical(1.0f / Sqrt(FlushSubnormal(a))); });
  // The lower half of the result's bits is 0.
  t->Define("rcp.approx.ftz.f64", [](double a) -> double {
    const double flushed = std::abs(a) < 0x1p-1022 ? std::copysign(0.0, a) : a;
    const double result = DoubleOf(BitsOf(1.0 / flushed) & ~uint64_t{0xffffffff});
    return std::abs(result) < 0x1p-1022 ? std::copysign(0.0, result) : result;
  });
  t->Define("rsqrt.approx.ftz.f64", [](double a) -> double {
    const double flushed = std::abs(a) < 0x1p-1022 ? std::copysign(0.0, a) : a;
    return DoubleOf(BitsOf(1.0 / Sqrt(flushed)) & ~uint64_t{0xffffffff});
  });
  t->Alias("rsqrt.approx.f64", "rsqrt.approx.ftz.f64");
}

}  // namespace

void DefineArithmetic(OperationTable* t) {
  DefineInteger<int16_t>(t);
  DefineInteger<uint16_t>(t);
  DefineInteger<int32_t>(t);
  DefineInteger<uint32_t>(t);
  DefineInteger<int64_t>(t);
  DefineInteger<uint64_t>(t);
  DefineBits<uint16_t>(t);
  DefineBits<uint32_t>(t);
  DefineBits<uint64_t>(t);
  DefineWords<int32_t>(t);
  DefineWords<uint32_t>(t);
  DefineWords<int64_t>(t);
  DefineWords<uint64_t>(t);
  DefineOtherWords(t);
  DefineFloat<float>(t);
  DefineFloat<double>(t);
  DefineApproximations(t);
}

}  // namespace ptx
}  // namespace cudasim
