// The simulated CUDA runtime, for .cu files and the host code around them.
#ifndef CUDASIM_CUDA_RUNTIME_H_
#define CUDASIM_CUDA_RUNTIME_H_

// Distinguishes this header from NVIDIA's.
#define CUDASIM 1

#include "cudasim/device_api.h"
#include "cudasim/runtime_api.h"
#include "cudasim/types.h"

#endif  // CUDASIM_CUDA_RUNTIME_H_
