// ldmatrix and mma.
#include <immintrin.h>

#include <cmath>
#include <cstring>
#include <iterator>

#include "cudasim/float_formats.h"
#include "tools/cudasim/ptx/addresses.h"
#include "tools/cudasim/ptx/bits.h"
#include "tools/cudasim/ptx/collectives.h"

namespace cudasim {
namespace ptx {

MatrixSums matrix_sums = MatrixSums::kFused;

namespace {

#define CUDASIM_UNROLL _Pragma("GCC unroll 8")

// Of 8 rows of 8 values of 16 bits, the columns.
inline __attribute__((always_inline)) void Transpose8(const __m128i* rows, __m128i* columns) {
  __m128i pairs[8], quads[8];
  CUDASIM_UNROLL
  for (int j = 0; j < 4; ++j) {
    pairs[2 * j] = _mm_unpacklo_epi16(rows[2 * j], rows[2 * j + 1]);
    pairs[2 * j + 1] = _mm_unpackhi_epi16(rows[2 * j], rows[2 * j + 1]);
  }
  CUDASIM_UNROLL
  for (int half = 0; half < 2; ++half) {
    const __m128i* const p = pairs + 4 * half;
    quads[4 * half] = _mm_unpacklo_epi32(p[0], p[2]);
    quads[4 * half + 1] = _mm_unpackhi_epi32(p[0], p[2]);
    quads[4 * half + 2] = _mm_unpacklo_epi32(p[1], p[3]);
    quads[4 * half + 3] = _mm_unpackhi_epi32(p[1], p[3]);
  }
  CUDASIM_UNROLL
  for (int j = 0; j < 4; ++j) {
    columns[2 * j] = _mm_unpacklo_epi64(quads[j], quads[4 + j]);
    columns[2 * j + 1] = _mm_unpackhi_epi64(quads[j], quads[4 + j]);
  }
}

template <bool kBfloat>
inline __attribute__((always_inline)) __m256 Widen(__m128i values) {
  if constexpr (kBfloat) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(values), 16));
  } else {
    return _mm256_cvtph_ps(values);
  }
}

// What runs before this instruction, if only a part of the warp is here.
const Instruction* GatherWarp(Warp& warp, const Instruction* i) {
  if (warp.mask == kAllLanes) return nullptr;
  if (const Instruction* const others = LetOthersCatchUp(warp, i); others != nullptr) return others;
  warp.Fail(Bug::kMissingLanes, i, __builtin_ctz(warp.mask), "only a part of the warp runs this");
}

// m16n8k16 of 16-bit values with sums in f32. A register of 32 lanes is 8 rows of 4 pairs.
template <bool kBfloat>
const Instruction* MultiplyFast(Warp& warp, const Instruction* i) {
  if (const Instruction* const others = GatherWarp(warp, i)) return others;
  const Slot* const slots = warp.program->slots.data() + i->extra;
  const Slot *const d = slots, *const a = slots + 4, *const b = slots + 8, *const c = slots + 10;
  alignas(32) float left[16][16], right[16][8];
  CUDASIM_UNROLL
  for (int q = 0; q < 4; ++q) {
    const auto* const rows = warp.Lanes<__m128i>(a[q]);
    CUDASIM_UNROLL
    for (int g = 0; g < 8; ++g) {
      _mm256_store_ps(&left[g + 8 * (q & 1)][8 * (q >> 1)],
                      Widen<kBfloat>(_mm_loadu_si128(rows + g)));
    }
  }
  CUDASIM_UNROLL
  for (int q = 0; q < 2; ++q) {
    const auto* const from = warp.Lanes<__m128i>(b[q]);
    __m128i rows[8], columns[8];
    CUDASIM_UNROLL
    for (int g = 0; g < 8; ++g) rows[g] = _mm_loadu_si128(from + g);
    Transpose8(rows, columns);
    CUDASIM_UNROLL
    for (int k = 0; k < 8; ++k) _mm256_store_ps(right[8 * q + k], Widen<kBfloat>(columns[k]));
  }
  CUDASIM_UNROLL
  for (int half = 0; half < 2; ++half) {
    // Even and odd columns of 8 rows.
    const float* const even = warp.Lanes<float>(c[2 * half]);
    const float* const odd = warp.Lanes<float>(c[2 * half + 1]);
    __m256 sums[8];
    CUDASIM_UNROLL
    for (int g = 0; g < 8; ++g) {
      const __m128 e = _mm_loadu_ps(even + 4 * g), o = _mm_loadu_ps(odd + 4 * g);
      sums[g] = _mm256_set_m128(_mm_unpackhi_ps(e, o), _mm_unpacklo_ps(e, o));
    }
    for (int k = 0; k < 16; ++k) {
      const __m256 column = _mm256_load_ps(right[k]);
      CUDASIM_UNROLL
      for (int g = 0; g < 8; ++g) {
        sums[g] = _mm256_fmadd_ps(_mm256_broadcast_ss(&left[8 * half + g][k]), column, sums[g]);
      }
    }
    float* const even_sums = warp.Lanes<float>(d[2 * half]);
    float* const odd_sums = warp.Lanes<float>(d[2 * half + 1]);
    CUDASIM_UNROLL
    for (int g = 0; g < 8; ++g) {
      const __m128 low = _mm256_castps256_ps128(sums[g]), high = _mm256_extractf128_ps(sums[g], 1);
      _mm_storeu_ps(even_sums + 4 * g, _mm_shuffle_ps(low, high, 0x88));
      _mm_storeu_ps(odd_sums + 4 * g, _mm_shuffle_ps(low, high, 0xdd));
    }
  }
  return i + 1;
}

// c + the sum of a[k] b[k], up to 16 of them, with this many bits of fraction: see MatrixSums.
float SumAligned(float c, const float* a, const float* b, int count, int fraction) {
  double terms[17];
  int exponents[17], largest = -1 << 20;
  bool finite = true;
  for (int k = 0; k <= count; ++k) {
    terms[k] = k < count ? static_cast<double>(a[k]) * b[k] : c;
    finite = finite && terms[k] - terms[k] == 0;
    exponents[k] = -1 << 20;
    if (terms[k] == 0) continue;
    // A product's exponent is the sum of its factors', before it is normalised.
    exponents[k] = k < count ? std::ilogb(a[k]) + std::ilogb(b[k]) : std::ilogb(c);
    largest = std::max(largest, exponents[k]);
  }
  if (!finite) {
    double sum = c;
    for (int k = 0; k < count; ++k) sum += terms[k];
    return Canonical(static_cast<float>(sum));
  }
  int64_t sum = 0;  // of units of 2^(largest - fraction)
  for (int k = 0; k <= count; ++k) {
    if (exponents[k] > -1 << 20)
      sum += static_cast<int64_t>(std::ldexp(terms[k], fraction - largest));
  }
  if (sum == 0) return 0.0f;
  // To f32, rounded towards zero.
  const double exact = std::ldexp(static_cast<double>(sum), largest - fraction);
  const auto nearest = static_cast<float>(exact);
  return std::abs(static_cast<double>(nearest)) > std::abs(exact) ? std::nextafter(nearest, 0.0f)
                                                                  : nearest;
}

float ElementOf(uint32_t bits, int element, Type type) {
  switch (type) {
    case Type::kF16:
      return HalfToFloat(static_cast<uint16_t>(bits >> (16 * element)));
    case Type::kBf16:
      return Bf16ToFloat(static_cast<uint16_t>(bits >> (16 * element)));
    case Type::kTf32:
      return FloatOf(bits & ~uint32_t{0x1fff});
    case Type::kS8:
      return static_cast<int8_t>(bits >> (8 * element));
    default:
      return static_cast<uint8_t>(bits >> (8 * element));
  }
}

// The rows of A, and the columns of B, of any m16n8 shape. All values are exact in f32.
struct Fragments {
  float a[16][32];
  float b[8][32];
};

void ReadFragments(const Warp& warp, const MatrixShape& shape, const Slot* slots, Fragments* f) {
  const int elements = 4 / BytesOf(shape.a);  // in a register
  for (int lane = 0; lane < kLanes; ++lane) {
    const int group = lane / 4, within = lane % 4;
    for (int q = 0; q < shape.registers_a + shape.registers_b; ++q) {
      const uint32_t bits = warp.Lanes<uint32_t>(slots[shape.registers_d + q])[lane];
      for (int e = 0; e < elements; ++e) {
        const int k = elements * within + e;
        if (q < shape.registers_a) {
          f->a[group + 8 * (q & 1)][k + 4 * elements * (q >> 1)] = ElementOf(bits, e, shape.a);
        } else {
          f->b[group][k + 4 * elements * (q - shape.registers_a)] = ElementOf(bits, e, shape.b);
        }
      }
    }
  }
}

template <typename T>
T Product(const MatrixShape& shape, T sum, const float* a, const float* b) {
  if constexpr (std::is_integral_v<T>) {
    for (int k = 0; k < shape.k; ++k) {
      sum = static_cast<T>(static_cast<uint32_t>(sum) +
                           static_cast<uint32_t>(static_cast<T>(a[k]) * static_cast<T>(b[k])));
    }
  } else if (matrix_sums == MatrixSums::kHopper) {
    sum = SumAligned(sum, a, b, shape.k, 25);
  } else if (matrix_sums == MatrixSums::kAmpere) {
    const int step = shape.a == Type::kTf32 ? 4 : 8;
    for (int k = 0; k < shape.k; k += step) sum = SumAligned(sum, a + k, b + k, step, 24);
  } else {
    for (int k = 0; k < shape.k; ++k) sum = __builtin_fmaf(a[k], b[k], sum);
  }
  return sum;
}

template <typename T>
const Instruction* Multiply(Warp& warp, const Instruction* i) {
  if (const Instruction* const others = GatherWarp(warp, i)) return others;
  const auto& shape = *static_cast<const MatrixShape*>(i->data);
  const Slot* const slots = warp.program->slots.data() + i->extra;
  const Slot* const c = slots + shape.registers_d + shape.registers_a + shape.registers_b;
  Fragments f;
  ReadFragments(warp, shape, slots, &f);
  const bool halves = shape.d == Type::kF16;  // two in a register
  T sums[4][kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int q = 0; q < 4; ++q) {
      const int row = lane / 4 + 8 * (q >> 1), column = 2 * (lane % 4) + (q & 1);
      T sum;
      if (halves) {
        const uint32_t pair = warp.Lanes<uint32_t>(c[q >> 1])[lane];
        sum = static_cast<T>(HalfToFloat(static_cast<uint16_t>(pair >> (16 * (q & 1)))));
      } else {
        sum = warp.Lanes<T>(c[q])[lane];
      }
      sums[q][lane] = Product<T>(shape, sum, f.a[row], f.b[column]);
    }
  }
  for (int q = 0; q < 4; ++q) {
    for (int lane = 0; lane < kLanes; ++lane) {
      if (halves) {
        const uint32_t half = FloatToHalf(static_cast<float>(sums[q][lane]));
        uint32_t& pair = warp.Lanes<uint32_t>(slots[q >> 1])[lane];
        pair = q & 1 ? (pair & 0xffff) | half << 16 : half;
      } else {
        warp.Lanes<T>(slots[q])[lane] = sums[q][lane];
      }
    }
  }
  return i + 1;
}

// m8n8k4 in f64.
const Instruction* MultiplyDouble(Warp& warp, const Instruction* i) {
  if (const Instruction* const others = GatherWarp(warp, i)) return others;
  const Slot* const slots = warp.program->slots.data() + i->extra;
  const double *const a = warp.Lanes<double>(slots[2]), *const b = warp.Lanes<double>(slots[3]);
  double sums[2][kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int q = 0; q < 2; ++q) {
      double sum = warp.Lanes<double>(slots[4 + q])[lane];
      const int column = 2 * (lane % 4) + q;
      for (int k = 0; k < 4; ++k) {
        sum = __builtin_fma(a[lane / 4 * 4 + k], b[column * 4 + k], sum);
      }
      sums[q][lane] = sum;
    }
  }
  for (int q = 0; q < 2; ++q) {
    std::memcpy(warp.Lanes<double>(slots[q]), sums[q], sizeof(sums[q]));
  }
  return i + 1;
}

// By name, k and types; then the registers of D, A, B, C.
constexpr MatrixShape kShapes[] = {
    {16, 8, 16, Type::kBf16, Type::kBf16, Type::kF32, Type::kF32, 4, 4, 2, 4},
    {16, 8, 16, Type::kF16, Type::kF16, Type::kF32, Type::kF32, 4, 4, 2, 4},
    {16, 8, 16, Type::kF16, Type::kF16, Type::kF16, Type::kF16, 2, 4, 2, 2},
    {16, 8, 8, Type::kBf16, Type::kBf16, Type::kF32, Type::kF32, 4, 2, 1, 4},
    {16, 8, 8, Type::kF16, Type::kF16, Type::kF32, Type::kF32, 4, 2, 1, 4},
    {16, 8, 8, Type::kF16, Type::kF16, Type::kF16, Type::kF16, 2, 2, 1, 2},
    {16, 8, 8, Type::kTf32, Type::kTf32, Type::kF32, Type::kF32, 4, 4, 2, 4},
    {16, 8, 4, Type::kTf32, Type::kTf32, Type::kF32, Type::kF32, 4, 2, 1, 4},
    {16, 8, 32, Type::kS8, Type::kS8, Type::kS32, Type::kS32, 4, 4, 2, 4},
    {16, 8, 32, Type::kU8, Type::kU8, Type::kS32, Type::kS32, 4, 4, 2, 4},
    {16, 8, 16, Type::kS8, Type::kS8, Type::kS32, Type::kS32, 4, 2, 1, 4},
    {16, 8, 16, Type::kU8, Type::kU8, Type::kS32, Type::kS32, 4, 2, 1, 4},
    {8, 8, 4, Type::kF64, Type::kF64, Type::kF64, Type::kF64, 2, 1, 1, 2},
};

}  // namespace

const MatrixShape* FindMatrixShape(std::string_view shape, Type d, Type a, Type b, Type c) {
  for (const MatrixShape& known : kShapes) {
    const std::string name = "m" + std::to_string(known.m) + "n" + std::to_string(known.n) + "k" +
                             std::to_string(known.k);
    if (name == shape && known.d == d && known.a == a && known.b == b && known.c == c) {
      return &known;
    }
  }
  return nullptr;
}

Handler MatrixHandler(const MatrixShape& shape) {
  if (shape.d == Type::kF64) return &MultiplyDouble;
  if (shape.d == Type::kS32) return &Multiply<int32_t>;
  if (shape.d == Type::kF32 && shape.k == 16 && matrix_sums == MatrixSums::kFused) {
    return shape.a == Type::kBf16 ? &MultiplyFast<true> : &MultiplyFast<false>;
  }
  return &Multiply<float>;
}

const Instruction* LoadMatrices(Warp& warp, const Instruction* i) {
  if (const Instruction* const others = GatherWarp(warp, i)) return others;
  uint64_t at[kLanes];
  ReadAddresses<uint32_t>(warp, i, at);
  for (int k = 8 * i->count; k < kLanes; ++k) at[k] = at[0];  // these are not used
  warp.mask = kAllLanes >> (kLanes - 8 * i->count);
  CheckOffsets(warp, i, Space::kShared, at, 16, warp.block->shared_bytes());
  warp.mask = kAllLanes;
  const Slot* const slots = warp.program->slots.data() + i->extra;
  for (int m = 0; m < i->count; ++m) {
    __m128i rows[8], columns[8];
    CUDASIM_UNROLL
    for (int g = 0; g < 8; ++g) {
      const std::byte* const from = warp.block->shared() + at[8 * m + g];
      rows[g] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    }
    if (i->option == 1) {
      Transpose8(rows, columns);
    } else {
      std::memcpy(columns, rows, sizeof(rows));
    }
    std::memcpy(warp.Lanes<__m128i>(slots[m]), columns, sizeof(columns));
  }
  return warp.AfterAccess(i);
}

}  // namespace ptx
}  // namespace cudasim
