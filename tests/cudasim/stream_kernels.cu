#include <utility>

#include "tests/cudasim/stream_kernels.h"

namespace lockstep {
namespace {

__global__ void CopyKernel(int* to, const int* from) { to[threadIdx.x] = from[threadIdx.x]; }
__global__ void AddKernel(int* x, int value) { x[threadIdx.x] += value; }
__global__ void StoreKernel(int* const* target, int value) { **target = value; }
__device__ int offset = 100;
__global__ void StoresKernel(int* const* targets) {
  *targets[threadIdx.x] = offset + static_cast<int>(threadIdx.x);
}
__global__ void NothingKernel() {}

template <class... Params, class... Args>
cudaError_t Launch(cudaStream_t stream, void (*kernel)(Params...), dim3 grid, dim3 block,
                   size_t shared_bytes, Args&&... args) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...);
}

}  // namespace

cudaError_t RunCopy(cudaStream_t stream, int* to, const int* from) {
  return Launch(stream, CopyKernel, 1, 2, 0, to, from);
}
cudaError_t RunAdd(cudaStream_t stream, int* x, int value) {
  return Launch(stream, AddKernel, 1, 2, 0, x, value);
}
cudaError_t RunStore(int* const* target, int value) {
  return Launch(nullptr, StoreKernel, 1, 1, 0, target, value);
}
cudaError_t RunStores(int* const* targets) {
  return Launch(nullptr, StoresKernel, 1, 32, 0, targets);
}
cudaError_t RunNothing(cudaStream_t stream, dim3 grid, dim3 block, size_t shared_bytes) {
  return Launch(stream, NothingKernel, grid, block, shared_bytes);
}
const void* AddKernelFunction() { return reinterpret_cast<const void*>(AddKernel); }
const void* NothingKernelFunction() { return reinterpret_cast<const void*>(NothingKernel); }

}  // namespace lockstep
