// The simulated CUDA runtime: what a .cu file and the host code around it include.
#ifndef CUDASIM_CUDA_RUNTIME_H_
#define CUDASIM_CUDA_RUNTIME_H_

// Tells this header from NVIDIA's.
#define CUDASIM 1

#include "cudasim/device_api.h"
#include "cudasim/runtime_api.h"
#include "cudasim/types.h"

#endif  // CUDASIM_CUDA_RUNTIME_H_
