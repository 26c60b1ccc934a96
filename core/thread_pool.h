// The CPU's threads. Work is cut into chunks that depend only on the problem, so results do not
// depend on the number of threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/round_up.h"

namespace lockstep {

// The number of threads that ParallelFor uses, including the caller. By default, the hardware's.
int NumThreads();
// n >= 1. Call when no ParallelFor runs.
void SetNumThreads(int n);

namespace internal {
using ChunkFunction = void (*)(const void* context, int64_t chunk);
void RunChunks(int64_t chunks, ChunkFunction function, const void* context);
}  // namespace internal

// Calls f(begin, end) for [0, n) in chunks of `grain` (the last one shorter), in any order, on any
// of the pool's threads. Nested calls, and calls while another thread uses the pool, run on the
// calling thread. The first exception is rethrown here.
template <class F>
void ParallelFor(int64_t n, int64_t grain, const F& f) {
  if (n <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  if (n <= grain) {
    f(int64_t{0}, n);
    return;
  }
  struct Context {
    const F& f;
    int64_t n, grain;
  } context{f, n, grain};
  internal::RunChunks(
      DivideUp(n, grain),
      [](const void* c, int64_t chunk) {
        const Context& x = *static_cast<const Context*>(c);
        x.f(chunk * x.grain, std::min(x.n, (chunk + 1) * x.grain));
      },
      &context);
}

// Calls f(i) for i in [0, n), in such chunks: for rows, whose work is worth a call.
template <class F>
void ParallelForEach(int64_t n, int64_t grain, const F& f) {
  ParallelFor(n, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) f(i);
  });
}

}  // namespace lockstep
