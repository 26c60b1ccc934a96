// CUDA's keywords, for g++.
#ifndef CUDASIM_QUALIFIERS_H_
#define CUDASIM_QUALIFIERS_H_

#define __host__
#define __device__
#define __global__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)
// Written by cudaMemcpyToSymbol and read by kernels: a static variable.
#define __constant__ static
// Blocks that share an OS thread run one after the other. Prefer CUDASIM_SHARED_ARRAY
// (cudasim/shared.h): these arrays are neither poisoned nor bounds-checked, and the race checker
// does not see them.
#define __shared__ static thread_local

// __noinline__ is left out: libstdc++ uses the word in its own attributes.

#endif  // CUDASIM_QUALIFIERS_H_
