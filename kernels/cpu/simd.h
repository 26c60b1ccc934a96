// Loops compiled a second time for AVX-512, chosen where the CPU has it.
#pragma once

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

// Calls f(), in vectors of 512 bits where the CPU has them. Everything that f calls is inlined into
// it: for small loops. Compilers contract and order f's arithmetic in the same way for both, so
// results have the same bits.
template <class F>
inline void Vectorised(const F& f) {
#ifdef __x86_64__
  if (HasAvx512()) return RunOnAvx512(f);
#endif
  f();
}

// ParallelFor over a function that is Vectorised.
template <class F>
void VectorisedParallelFor(int64_t n, int64_t grain, const F& f) {
  ParallelFor(n, grain, [&](int64_t begin, int64_t end) { Vectorised([&] { f(begin, end); }); });
}

}  // namespace lockstep::cpu
