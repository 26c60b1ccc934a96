// The identity of the calling thread: threadIdx and others.
#ifndef CUDASIM_THREAD_H_
#define CUDASIM_THREAD_H_

#include <source_location>

#include "cudasim/types.h"

// Variables of the OS thread, which runs the threads of a block in turn. The TLS model avoids the
// call that position-independent code would make for every access.
#define CUDASIM_THREAD_LOCAL constinit thread_local __attribute__((tls_model("initial-exec")))

extern CUDASIM_THREAD_LOCAL uint3 threadIdx;
extern CUDASIM_THREAD_LOCAL uint3 blockIdx;
extern CUDASIM_THREAD_LOCAL dim3 blockDim;
extern CUDASIM_THREAD_LOCAL dim3 gridDim;

inline constexpr int warpSize = 32;

namespace cudasim {

// A place in a source file, with its column. It is a default argument of every function that can
// report a bug, and thus the caller's place.
using Where = std::source_location;

// The number of the calling thread in its block.
inline unsigned ThreadNumber() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
inline unsigned LaneNumber() { return ThreadNumber() % 32; }

// Lets the other threads of the block run first.
void YieldThread();

[[noreturn]] void Trap(Where where);

}  // namespace cudasim

inline void __nanosleep(unsigned) { cudasim::YieldThread(); }
[[noreturn]] inline void __trap(cudasim::Where where = cudasim::Where::current()) {
  cudasim::Trap(where);
}
long long clock64();  // NOLINT: CUDA's type. Nanoseconds.
#endif                // CUDASIM_THREAD_H_
