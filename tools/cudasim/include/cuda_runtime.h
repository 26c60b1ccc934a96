// CUDA's runtime, for host code: the same declarations serve NVIDIA's libraries and the simulator.
#ifndef CUDASIM_CUDA_RUNTIME_H_
#define CUDASIM_CUDA_RUNTIME_H_

#include "cudasim/runtime_api.h"
#include "cudasim/types.h"

#endif  // CUDASIM_CUDA_RUNTIME_H_
