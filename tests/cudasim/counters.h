// Small kernels whose traffic one can count by hand: see counters.cu.
#pragma once

#include <cuda_runtime.h>

#include <string>

namespace lockstep {

// Runs "Copy", ..., which is CopyKernel, with 1024 floats of each array, aligned to 256 bytes.
cudaError_t RunCounted(const std::string& name, const float* x, float* y);

}  // namespace lockstep
