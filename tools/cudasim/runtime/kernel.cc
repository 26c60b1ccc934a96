// Launching kernels: refuses what the real runtime refuses, and enqueues the rest.
#include <map>
#include <utility>

#include "cudasim/access.h"
#include "limits.h"
#include "state.h"

namespace cudasim {
namespace runtime {
namespace {

// The limits set by cudaFuncSetAttribute, by kernel. Guarded by the state's lock.
std::map<const void*, int>& DynamicShared() {
  static auto* const sizes = new std::map<const void*, int>;
  return *sizes;
}

int DynamicSharedOf(const void* function) {
  const auto found = DynamicShared().find(function);
  return found == DynamicShared().end() ? kSharedPerBlock : found->second;
}

int BlocksPerMultiprocessor(int threads, size_t shared) {
  if (threads <= 0 || threads > kMaxThreadsPerBlock) return 0;
  const int warps = (threads + 31) / 32;
  int blocks = kMaxThreadsPerMultiprocessor / (warps * 32);
  if (blocks > kMaxBlocksPerMultiprocessor) blocks = kMaxBlocksPerMultiprocessor;
  const auto by_shared = static_cast<int>(SharedPerMultiprocessor() / (shared + kSharedReserved));
  return blocks < by_shared ? blocks : by_shared;
}

cudaError_t CheckConfiguration(const Launch& launch) {
  const unsigned grid[3] = {launch.grid.x, launch.grid.y, launch.grid.z};
  const unsigned block[3] = {launch.block.x, launch.block.y, launch.block.z};
  uint64_t threads = 1;
  uint64_t blocks = 1;
  for (int i = 0; i < 3; ++i) {
    if (grid[i] == 0 || grid[i] > static_cast<unsigned>(kMaxGrid[i])) {
      return cudaErrorInvalidConfiguration;
    }
    if (block[i] == 0 || block[i] > static_cast<unsigned>(kMaxBlock[i])) {
      return cudaErrorInvalidConfiguration;
    }
    threads *= block[i];
    blocks *= grid[i];
  }
  if (threads > kMaxThreadsPerBlock) return cudaErrorInvalidConfiguration;
  // More than 48 KiB must first be allowed by cudaFuncSetAttribute.
  if (launch.shared_bytes > static_cast<size_t>(DynamicSharedOf(launch.function))) {
    return cudaErrorInvalidValue;
  }
  if (launch.cooperative) {
    const auto resident = static_cast<uint64_t>(kMultiprocessors) *
                          BlocksPerMultiprocessor(static_cast<int>(threads), launch.shared_bytes);
    if (blocks > resident) return cudaErrorCooperativeLaunchTooLarge;
  }
  return cudaSuccess;
}

cudaError_t LaunchKernel(cudaStream_t handle, Launch launch) {
  State& state = GetState();
  Lock lock(state.mutex);
  if (const cudaError_t error = Sticky(lock); error != cudaSuccess) return error;
  if (const cudaError_t error = CheckConfiguration(launch); error != cudaSuccess) return error;
  CUstream_st* const stream = Resolve(lock, handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  // Unlike copies, kernels may not be launched on another device's stream.
  const int device = stream->device;
  if (device != GetThread().device) return cudaErrorInvalidResourceHandle;
  Work work;
  work.type = cudaGraphNodeTypeKernel;
  work.what = "kernel " + launch.name;
  work.ranges.reserve(launch.pointers.size());
  for (const PointerArgument& pointer : launch.pointers) {
    if (pointer.address != nullptr) work.ranges.push_back({pointer.address, 1, pointer.written});
  }
  work.run = [device, launch = std::move(launch)] {
    const DeviceAccess access(device);
    return launch.run(device);
  };
  return SubmitLocked(lock, stream, std::move(work), nullptr);
}

}  // namespace
}  // namespace runtime

cudaError_t Enqueue(cudaStream_t stream, Launch launch) {
  return runtime::Return(runtime::LaunchKernel(stream, std::move(launch)));
}

}  // namespace cudasim

using cudasim::runtime::Return;

cudaError_t cudaFuncSetAttribute(const void* func, cudaFuncAttribute attr, int value) {
  using namespace cudasim::runtime;  // NOLINT
  if (func == nullptr) return Return(cudaErrorInvalidDeviceFunction);
  if (attr == cudaFuncAttributePreferredSharedMemoryCarveout) {
    return Return(value >= -1 && value <= 100 ? cudaSuccess : cudaErrorInvalidValue);
  }
  if (attr != cudaFuncAttributeMaxDynamicSharedMemorySize) return Return(cudaErrorInvalidValue);
  if (value < 0 || value > SharedPerBlockOptIn()) return Return(cudaErrorInvalidValue);
  const Lock lock(GetState().mutex);
  DynamicShared()[func] = value;
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attr, const void* func) {
  using namespace cudasim::runtime;  // NOLINT
  if (attr == nullptr) return Return(cudaErrorInvalidValue);
  if (func == nullptr) return Return(cudaErrorInvalidDeviceFunction);
  const Lock lock(GetState().mutex);
  *attr = {};
  attr->maxThreadsPerBlock = kMaxThreadsPerBlock;
  attr->ptxVersion = Major() * 10 + Minor();
  attr->binaryVersion = Major() * 10 + Minor();
  attr->maxDynamicSharedSizeBytes = DynamicSharedOf(func);
  attr->preferredShmemCarveout = -1;
  return cudaSuccess;
}

cudaError_t cudaFuncSetCacheConfig(const void* func, cudaFuncCache) {
  return Return(func == nullptr ? cudaErrorInvalidDeviceFunction : cudaSuccess);
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* numBlocks, const void* func,
                                                          int blockSize, size_t dynamicSMemSize) {
  if (func == nullptr) return Return(cudaErrorInvalidDeviceFunction);
  if (numBlocks == nullptr || blockSize <= 0) return Return(cudaErrorInvalidValue);
  *numBlocks = cudasim::runtime::BlocksPerMultiprocessor(blockSize, dynamicSMemSize);
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* numBlocks, const void* func,
                                                                   int blockSize,
                                                                   size_t dynamicSMemSize,
                                                                   unsigned int flags) {
  if (flags > 1) return Return(cudaErrorInvalidValue);  // cudaOccupancyDisableCachingOverride
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(numBlocks, func, blockSize, dynamicSMemSize);
}
