// The compiler's vector types.
#pragma once

#ifdef __FMA__
#include <immintrin.h>
#endif

namespace lockstep::cpu {

// kLanes elements of T: a value, and the same in memory, aligned as T is. Outside of code that is
// compiled for one instruction set, no function may take or return more than 32 bytes by value: how
// that is done depends on the instruction set.
template <class T, int kLanes>
struct Vector {
  typedef T Type __attribute__((vector_size(kLanes * sizeof(T))));
  typedef T Memory __attribute__((vector_size(kLanes * sizeof(T)), aligned(sizeof(T)), may_alias));
};

// a b + c, rounded once: an operation that g++ 12 does not have on these types.
template <class V>
inline V Fma(V a, V b, V c) {
  constexpr bool kFloat = sizeof(a[0]) == sizeof(float);
#ifdef __FMA__
  if constexpr (sizeof(V) == 32 && kFloat) return _mm256_fmadd_ps(a, b, c);
  if constexpr (sizeof(V) == 32 && !kFloat) return _mm256_fmadd_pd(a, b, c);
#endif
  for (unsigned i = 0; i < sizeof(V) / sizeof(a[0]); ++i) {
    c[i] = kFloat ? __builtin_fmaf(a[i], b[i], c[i]) : __builtin_fma(a[i], b[i], c[i]);
  }
  return c;
}

// The sum of the lanes: lane i and lane i + 4, then i and i + 2, then 0 and 1. In vectors, since
// compilers turn such a loop into stores, and loads that wait for several of them.
template <class V>
inline auto SumLanes(const V& v) {
  if constexpr (sizeof(v) / sizeof(v[0]) == 8) {
    return SumLanes(__builtin_shufflevector(v, v, 0, 1, 2, 3) +
                    __builtin_shufflevector(v, v, 4, 5, 6, 7));
  } else {
    static_assert(sizeof(v) / sizeof(v[0]) == 4);
    const auto two = __builtin_shufflevector(v, v, 0, 1) + __builtin_shufflevector(v, v, 2, 3);
    return two[0] + two[1];
  }
}

}  // namespace lockstep::cpu
