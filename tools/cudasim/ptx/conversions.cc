// cvt, and packing and unpacking by mov.
#include <cmath>

#include "cudasim/float_formats.h"
#include "tools/cudasim/ptx/bits.h"
#include "tools/cudasim/ptx/operations.h"

namespace cudasim {
namespace ptx {
namespace {

template <typename To, typename From>
[[gnu::always_inline]] inline To Saturate(From x) {
  using Limits = std::numeric_limits<To>;
  if constexpr (std::is_signed_v<From>) {
    if constexpr (!std::is_signed_v<To>) {
      if (x < 0) return 0;
    } else if constexpr (sizeof(From) > sizeof(To)) {
      if (x < static_cast<From>(Limits::min())) return Limits::min();
    }
  }
  if constexpr (sizeof(From) > sizeof(To) ||
                (!std::is_signed_v<From> && std::is_signed_v<To> && sizeof(From) == sizeof(To))) {
    if (x > static_cast<From>(Limits::max())) return Limits::max();
  }
  return static_cast<To>(x);
}

// Values out of range become the nearest in range. NaN becomes 0, but where 64 bits are involved
// the number whose highest bit alone is set.
template <typename To, typename From>
[[gnu::always_inline]] inline To ToInteger(From rounded) {
  using Limits = std::numeric_limits<To>;
  constexpr bool kWide = sizeof(From) == 8 || sizeof(To) == 8;
  constexpr To kNan = kWide ? static_cast<To>(To{1} << (8 * sizeof(To) - 1)) : To{0};
  // One above the greatest, which is a power of two.
  constexpr From kAbove = static_cast<From>(Limits::max() / 2 + 1) * 2;
  constexpr From kLeast = static_cast<From>(Limits::min());
  const bool fits = rounded > kLeast && rounded < kAbove;
  To result = static_cast<To>(fits ? rounded : From{0});
  result = rounded >= kAbove ? Limits::max() : result;
  result = rounded <= kLeast ? Limits::min() : result;
  return rounded == rounded ? result : kNan;
}

template <typename To, typename From>
void DefineIntegers(OperationTable* t) {
  const std::string types = Suffix<To>() + Suffix<From>();
  t->Define("cvt" + types, [](From x) -> To { return static_cast<To>(x); });
  t->Define("cvt.sat" + types, [](From x) -> To { return Saturate<To>(x); });
}

template <typename To>
void DefineIntegersTo(OperationTable* t) {
  DefineIntegers<To, uint8_t>(t);
  DefineIntegers<To, int8_t>(t);
  DefineIntegers<To, uint16_t>(t);
  DefineIntegers<To, int16_t>(t);
  DefineIntegers<To, uint32_t>(t);
  DefineIntegers<To, int32_t>(t);
  DefineIntegers<To, uint64_t>(t);
  DefineIntegers<To, int64_t>(t);
}

template <typename Float, typename Integer>
void DefineFloatAndInteger(OperationTable* t) {
  const std::string to_integer = Suffix<Integer>() + Suffix<Float>();
  t->Define("cvt.rni" + to_integer,
            [](Float x) -> Integer { return ToInteger<Integer>(std::nearbyint(x)); });
  t->Define("cvt.rzi" + to_integer,
            [](Float x) -> Integer { return ToInteger<Integer>(std::trunc(x)); });
  t->Define("cvt.rmi" + to_integer,
            [](Float x) -> Integer { return ToInteger<Integer>(std::floor(x)); });
  t->Define("cvt.rpi" + to_integer,
            [](Float x) -> Integer { return ToInteger<Integer>(std::ceil(x)); });
  t->Define("cvt" + Suffix<Float>() + Suffix<Integer>(),
            [](Integer x) -> Float { return static_cast<Float>(x); });
}

template <typename Float>
void DefineFloatAndIntegers(OperationTable* t) {
  DefineFloatAndInteger<Float, uint8_t>(t);
  DefineFloatAndInteger<Float, int8_t>(t);
  DefineFloatAndInteger<Float, uint16_t>(t);
  DefineFloatAndInteger<Float, int16_t>(t);
  DefineFloatAndInteger<Float, uint32_t>(t);
  DefineFloatAndInteger<Float, int32_t>(t);
  DefineFloatAndInteger<Float, uint64_t>(t);
  DefineFloatAndInteger<Float, int64_t>(t);
  const std::string types = Suffix<Float>() + Suffix<Float>();
  t->Define("cvt" + types, [](Float x) -> Float { return Canonical(x); });
  t->Define("cvt.rni" + types, [](Float x) -> Float { return Canonical(std::nearbyint(x)); });
  t->Define("cvt.rzi" + types, [](Float x) -> Float { return Canonical(std::trunc(x)); });
  t->Define("cvt.rmi" + types, [](Float x) -> Float { return Canonical(std::floor(x)); });
  t->Define("cvt.rpi" + types, [](Float x) -> Float { return Canonical(std::ceil(x)); });
  t->Define("cvt.sat" + types, [](Float x) -> Float {
    const Float positive = x > Float{0} ? x : Float{0};
    return positive < Float{1} ? positive : Float{1};
  });
}

[[gnu::always_inline]] inline uint16_t Bf16Of(float x) {
  const uint32_t bits = BitsOf(x);
  const auto rounded = static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  return x == x ? rounded : 0x7fff;
}

[[gnu::always_inline]] inline float Relu(float x) {
  return x > 0 ? x : (x == x ? 0.0f : FloatOf(0x7fffffff));
}

// f32 to f16, 8 lanes at a time, by the processor's instruction and rounding mode.
const Instruction* FloatToHalf(Warp& warp, const Instruction* i) {
  const float* const from = warp.Lanes<float>(i->a);
  alignas(32) uint16_t results[kLanes];
  for (int v = 0; v < 4; ++v) {
    const __m256 x = _mm256_loadu_ps(from + 8 * v);
    const __m128i half = _mm256_cvtps_ph(x, _MM_FROUND_CUR_DIRECTION);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m128i nan16 =
        _mm_packs_epi32(_mm256_castsi256_si128(nan), _mm256_extracti128_si256(nan, 1));
    _mm_store_si128(reinterpret_cast<__m128i*>(results) + v,
                    _mm_blendv_epi8(half, _mm_set1_epi16(0x7fff), nan16));
  }
  SetLanes<uint16_t>(warp, i->d, [&](int k) { return results[k]; });
  return i + 1;
}

const Instruction* HalfToFloat(Warp& warp, const Instruction* i) {
  const auto* const from = reinterpret_cast<const __m128i*>(warp.Lanes<uint16_t>(i->a));
  alignas(32) float results[kLanes];
  for (int v = 0; v < 4; ++v) {
    _mm256_store_ps(results + 8 * v, _mm256_cvtph_ps(_mm_loadu_si128(from + v)));
  }
  SetLanes<float>(warp, i->d, [&](int k) { return Canonical(results[k]); });
  return i + 1;
}

void DefineSmallFloatsFromFloat(OperationTable* t) {
  t->DefineHandler("cvt.rn.f16.f32", &FloatToHalf, Width::k16, {Width::k32});
  t->DefineHandler("cvt.f32.f16", &HalfToFloat, Width::k32, {Width::k16});
  t->Define("cvt.f32.bf16",
            [](uint16_t x) -> float { return Canonical(FloatOf(uint32_t{x} << 16)); });
  t->Define("cvt.rn.bf16.f32", [](float x) -> uint16_t { return Bf16Of(x); });
  t->Define("cvt.rz.bf16.f32", [](float x) -> uint16_t {
    return x == x ? static_cast<uint16_t>(BitsOf(x) >> 16) : uint16_t{0x7fff};
  });
  t->Define("cvt.rn.relu.bf16.f32", [](float x) -> uint16_t { return Bf16Of(Relu(x)); });
  t->Define("cvt.rn.relu.f16.f32",
            [](float x) -> uint16_t { return cudasim::FloatToHalf(Relu(x)); });
  t->Define("cvt.rz.f16.f32", [](float x) -> uint16_t {
    return x == x ? static_cast<uint16_t>(_cvtss_sh(x, _MM_FROUND_TO_ZERO)) : uint16_t{0x7fff};
  });
  // The first argument becomes the upper half.
  t->Define("cvt.rn.bf16x2.f32",
            [](float a, float b) -> uint32_t { return uint32_t{Bf16Of(a)} << 16 | Bf16Of(b); });
  t->Define("cvt.rn.relu.bf16x2.f32", [](float a, float b) -> uint32_t {
    return uint32_t{Bf16Of(Relu(a))} << 16 | Bf16Of(Relu(b));
  });
  t->Define("cvt.rn.f16x2.f32", [](float a, float b) -> uint32_t {
    return uint32_t{cudasim::FloatToHalf(a)} << 16 | cudasim::FloatToHalf(b);
  });
  t->Define("cvt.rn.relu.f16x2.f32", [](float a, float b) -> uint32_t {
    return uint32_t{cudasim::FloatToHalf(Relu(a))} << 16 | cudasim::FloatToHalf(Relu(b));
  });
  // To nearest, halves away from zero: 10 bits of the fraction remain.
  t->Define("cvt.rna.tf32.f32", [](float x) -> float {
    return FloatOf(x - x == 0 ? (BitsOf(x) + 0x1000) & ~uint32_t{0x1fff} : BitsOf(Canonical(x)));
  });
}

template <typename Integer>
void DefineHalfAndInteger(OperationTable* t) {
  const std::string integer = Suffix<Integer>();
  const auto define = [&](const std::string& rounding, auto round) {
    t->Define("cvt." + rounding + integer + ".f16", [](uint16_t x) -> Integer {
      return ToInteger<Integer>(decltype(round){}(cudasim::HalfToFloat(x)));
    });
  };
  define("rni", [](float x) { return std::nearbyint(x); });
  define("rzi", [](float x) { return std::trunc(x); });
  define("rmi", [](float x) { return std::floor(x); });
  define("rpi", [](float x) { return std::ceil(x); });
  t->Define("cvt.rn.f16" + integer,
            [](Integer x) -> uint16_t { return cudasim::DoubleToHalf(static_cast<double>(x)); });
  t->Define("cvt.rn.bf16" + integer,
            [](Integer x) -> uint16_t { return cudasim::DoubleToBf16(static_cast<double>(x)); });
}

void DefineOtherSmallFloats(OperationTable* t) {
  DefineHalfAndInteger<int16_t>(t);
  DefineHalfAndInteger<uint16_t>(t);
  DefineHalfAndInteger<int32_t>(t);
  DefineHalfAndInteger<uint32_t>(t);
  DefineHalfAndInteger<int64_t>(t);
  DefineHalfAndInteger<uint64_t>(t);
  t->Define("cvt.rn.f16.f64", [](double x) -> uint16_t { return cudasim::DoubleToHalf(x); });
  t->Define("cvt.rn.bf16.f64", [](double x) -> uint16_t { return cudasim::DoubleToBf16(x); });
  t->Define("cvt.f64.f16", [](uint16_t x) -> double { return cudasim::HalfToFloat(x); });
  t->Define("cvt.f64.bf16", [](uint16_t x) -> double { return FloatOf(uint32_t{x} << 16); });
  t->Alias("cvt.f16.f16", "mov.b16");
}

void DefinePacking(OperationTable* t) {
  t->Define("pack.b32",
            [](uint16_t low, uint16_t high) -> uint32_t { return uint32_t{high} << 16 | low; });
  t->Define("pack.b64",
            [](uint32_t low, uint32_t high) -> uint64_t { return uint64_t{high} << 32 | low; });
  t->Define("low.b32", [](uint32_t x) -> uint16_t { return static_cast<uint16_t>(x); });
  t->Define("high.b32", [](uint32_t x) -> uint16_t { return static_cast<uint16_t>(x >> 16); });
  t->Define("low.b64", [](uint64_t x) -> uint32_t { return static_cast<uint32_t>(x); });
  t->Define("high.b64", [](uint64_t x) -> uint32_t { return static_cast<uint32_t>(x >> 32); });
}

}  // namespace

void DefineConversions(OperationTable* t) {
  DefineIntegersTo<uint8_t>(t);
  DefineIntegersTo<int8_t>(t);
  DefineIntegersTo<uint16_t>(t);
  DefineIntegersTo<int16_t>(t);
  DefineIntegersTo<uint32_t>(t);
  DefineIntegersTo<int32_t>(t);
  DefineIntegersTo<uint64_t>(t);
  DefineIntegersTo<int64_t>(t);
  DefineFloatAndIntegers<float>(t);
  DefineFloatAndIntegers<double>(t);
  t->Define("cvt.f32.f64", [](double x) -> float { return Canonical(static_cast<float>(x)); });
  t->Define("cvt.f64.f32", [](float x) -> double { return x; });
  DefineSmallFloatsFromFloat(t);
  DefineOtherSmallFloats(t);
  DefinePacking(t);
}

}  // namespace ptx
}  // namespace cudasim
