// Loops compiled a second time for AVX-512, chosen where the CPU has it.
#pragma once

#include <type_traits>

#include "core/dtype.h"
#include "core/system/instruction_set.h"
#include "core/thread_pool.h"

namespace lockstep::cpu {

// Whether our loops use AVX-512.
inline bool HasAvx512() {
  static const bool has = UsedInstructionSet() >= InstructionSet::kAvx512;
  return has;
}

#ifdef __x86_64__
template <class F>
[[gnu::target("avx512f,avx512dq,avx512bw,avx512vl,prefer-vector-width=512"), gnu::flatten]] void
RunOnAvx512(const F& f) {
  f();
}
#endif

// Whether loops over T are compiled for every case by itself. What models seldom have, f64 and f16,
// shares code: each loop takes its time to compile.
template <class T>
inline constexpr bool kIsFast = std::is_same_v<T, float> || std::is_same_v<T, BF16>;

// Calls f(), a loop over elements of T, in vectors of 512 bits where the CPU has them and T is
// fast. Everything that f calls is inlined into it: for small loops. Compilers keep the order of
// f's arithmetic, and fuse none of it, so results have the same bits.
template <class T = float, class F>
inline void Vectorised(const F& f) {
#ifdef __x86_64__
  if constexpr (kIsFast<T>) {
    if (HasAvx512()) return RunOnAvx512(f);
  }
#endif
  f();
}

// ParallelFor over a function that is Vectorised.
template <class T = float, class F>
void VectorisedParallelFor(int64_t n, int64_t grain, const F& f) {
  ParallelFor(n, grain, [&](int64_t begin, int64_t end) { Vectorised<T>([&] { f(begin, end); }); });
}

}  // namespace lockstep::cpu
