// Shared memory in a form that nvcc and the simulated GPU both compile.
#pragma once

#include <cuda_runtime.h>

// SHARED_ARRAY(float, sums, 32);       static: float sums[32], one per block
// DYN_SHARED(float, tile);             dynamic: float* tile, the bytes that the launch gives
//
// Both go at the top of a kernel's body (or of a function it always calls), never in a branch. All
// DYN_SHARED of a kernel are the same memory. Contents are initially undefined. T must not contain
// commas: name it with `using` first.
#ifdef CUDASIM

#define SHARED_ARRAY(T, name, n) CUDASIM_SHARED_ARRAY(T, name, n)
#define DYN_SHARED(T, name) CUDASIM_DYN_SHARED(T, name)

#else

#define SHARED_ARRAY(T, name, n) __shared__ T name[n]
// One declaration of the symbol for every T, or kernels of one file would disagree on its type.
#define DYN_SHARED(T, name)                                      \
  extern __shared__ __align__(16) unsigned char ls_dyn_shared[]; \
  T* name = reinterpret_cast<T*>(ls_dyn_shared)

#endif
