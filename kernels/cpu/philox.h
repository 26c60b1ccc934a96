// Philox in batches.
#pragma once

#include <cstdint>

#include "core/philox.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace lockstep::cpu {

inline constexpr int64_t kPhiloxBatch = 64;  // blocks of four values

// out[4 i + j] = philox(stream, first + i).v[j] for i in [0, kPhiloxBatch).
inline void PhiloxBatch(const Philox& philox, uint64_t stream, uint64_t first, uint32_t* out);

#ifdef __AVX2__

namespace internal {

// Eight blocks at once, lane i of word w being word w of block i.
struct PhiloxWords {
  __m256i c0, c1, c2, c3;
};

// The upper and lower halves of eight products.
inline void MultiplyWide(__m256i x, uint32_t by, __m256i& upper, __m256i& lower) {
  const __m256i factor = _mm256_set1_epi32(static_cast<int>(by));
  const __m256i even = _mm256_mul_epu32(x, factor);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), factor);
  upper = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
  lower = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
}

// For the counters first ... first + 7.
inline PhiloxWords PhiloxCounters(uint64_t stream, uint64_t first) {
  const __m256i base = _mm256_set1_epi64x(static_cast<int64_t>(first));
  const __m256 a = _mm256_castsi256_ps(_mm256_add_epi64(base, _mm256_setr_epi64x(0, 1, 4, 5)));
  const __m256 b = _mm256_castsi256_ps(_mm256_add_epi64(base, _mm256_setr_epi64x(2, 3, 6, 7)));
  return {_mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88)),
          _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xDD)),
          _mm256_set1_epi32(static_cast<int>(stream)),
          _mm256_set1_epi32(static_cast<int>(stream >> 32))};
}

// Rounds are chains of dependent instructions: several groups of blocks side by side fill the gaps.
template <int groups>
inline void PhiloxRounds(const Philox& philox, PhiloxWords (&c)[groups]) {
  uint32_t k0 = philox.key[0], k1 = philox.key[1];
  for (int round = 0; round < 10; ++round) {
    const __m256i key0 = _mm256_set1_epi32(static_cast<int>(k0));
    const __m256i key1 = _mm256_set1_epi32(static_cast<int>(k1));
    for (PhiloxWords& w : c) {
      __m256i upper0, lower0, upper1, lower1;
      MultiplyWide(w.c0, 0xD2511F53u, upper0, lower0);
      MultiplyWide(w.c2, 0xCD9E8D57u, upper1, lower1);
      w.c0 = _mm256_xor_si256(_mm256_xor_si256(upper1, w.c1), key0);
      w.c1 = lower1;
      w.c2 = _mm256_xor_si256(_mm256_xor_si256(upper0, w.c3), key1);
      w.c3 = lower0;
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

// Block after block.
inline void StoreBlocks(const PhiloxWords& c, uint32_t* out) {
  const __m256i a = _mm256_unpacklo_epi32(c.c0, c.c1), b = _mm256_unpacklo_epi32(c.c2, c.c3);
  const __m256i d = _mm256_unpackhi_epi32(c.c0, c.c1), e = _mm256_unpackhi_epi32(c.c2, c.c3);
  const __m256i block04 = _mm256_unpacklo_epi64(a, b), block15 = _mm256_unpackhi_epi64(a, b);
  const __m256i block26 = _mm256_unpacklo_epi64(d, e), block37 = _mm256_unpackhi_epi64(d, e);
  auto* to = reinterpret_cast<__m256i*>(out);
  _mm256_storeu_si256(to, _mm256_permute2x128_si256(block04, block15, 0x20));
  _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(block26, block37, 0x20));
  _mm256_storeu_si256(to + 2, _mm256_permute2x128_si256(block04, block15, 0x31));
  _mm256_storeu_si256(to + 3, _mm256_permute2x128_si256(block26, block37, 0x31));
}

}  // namespace internal

inline void PhiloxBatch(const Philox& philox, uint64_t stream, uint64_t first, uint32_t* out) {
  constexpr int kGroups = 2;
  for (int64_t block = 0; block < kPhiloxBatch; block += 8 * kGroups) {
    internal::PhiloxWords words[kGroups];
    for (int g = 0; g < kGroups; ++g) {
      words[g] = internal::PhiloxCounters(stream, first + static_cast<uint64_t>(block + 8 * g));
    }
    internal::PhiloxRounds(philox, words);
    for (int g = 0; g < kGroups; ++g) internal::StoreBlocks(words[g], out + 4 * (block + 8 * g));
  }
}

#else

inline void PhiloxBatch(const Philox& philox, uint64_t stream, uint64_t first, uint32_t* out) {
  for (int64_t i = 0; i < kPhiloxBatch; ++i) {
    const Philox::Block block = philox(stream, first + static_cast<uint64_t>(i));
    for (int j = 0; j < 4; ++j) out[4 * i + j] = block.v[j];
  }
}

#endif

// Calls f(i, n, random) for runs that cover [0, count): random[k] is philox.At(stream, begin + i +
// k) for k in [0, n).
template <class F>
void ForEachRandom(const Philox& philox, uint64_t stream, uint64_t begin, int64_t count,
                   const F& f) {
  alignas(64) uint32_t random[4 * kPhiloxBatch];
  int64_t skip = static_cast<int64_t>(begin & 3);
  for (int64_t i = 0; i < count;) {
    PhiloxBatch(philox, stream, (begin + static_cast<uint64_t>(i)) >> 2, random);
    const int64_t n = count - i < 4 * kPhiloxBatch - skip ? count - i : 4 * kPhiloxBatch - skip;
    f(i, n, random + skip);
    i += n;
    skip = 0;
  }
}

}  // namespace lockstep::cpu
