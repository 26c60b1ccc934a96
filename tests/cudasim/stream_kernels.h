// Small kernels for the tests of streams, graphs and memory, launched on a stream.
#pragma once

#include <cuda_runtime.h>

namespace lockstep {

// to[i] = from[i] for i < 2
cudaError_t RunCopy(cudaStream_t stream, int* to, const int* from);
// x[i] += value for i < 2
cudaError_t RunAdd(cudaStream_t stream, int* x, int value);
// One thread: **target = value
cudaError_t RunStore(int* const* target, int value);
// One warp: lane i sets *targets[i] to 100 + i; the 100 is a variable of the device.
cudaError_t RunStores(int* const* targets);
cudaError_t RunNothing(cudaStream_t stream, dim3 grid, dim3 block, size_t shared_bytes);
// The kernel of RunAdd, for nodes of graphs; its block has two threads.
const void* AddKernelFunction();
// The kernel of RunNothing, for cudaFuncSetAttribute and the like.
const void* NothingKernelFunction();

}  // namespace lockstep
