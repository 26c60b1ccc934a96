// A launch on the default stream.
#pragma once

#include <cuda_runtime.h>

#include <utility>

namespace lockstep {

template <class... Params, class... Args>
cudaError_t LaunchKernel(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes,
                         Args&&... args) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  return cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...);
}

inline unsigned Blocks(int items, int per_block) {
  return static_cast<unsigned>((items + per_block - 1) / per_block);
}

}  // namespace lockstep
