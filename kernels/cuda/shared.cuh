// A launch's dynamic shared memory, by a name of the kernel's own.
#pragma once

#include <cuda_runtime.h>

// DYN_SHARED(float, tile);   float* tile, the bytes that the launch gives
//
// It goes at the top of a kernel's body (or of a function it always calls), never in a branch. All
// DYN_SHARED of a kernel are the same memory, whose contents are initially undefined. T must not
// contain commas: name it with `using` first. One declaration of the symbol serves every T, or
// kernels of one file would disagree on its type.
#define DYN_SHARED(T, name)                                      \
  extern __shared__ __align__(16) unsigned char ls_dyn_shared[]; \
  T* name = reinterpret_cast<T*>(ls_dyn_shared)
