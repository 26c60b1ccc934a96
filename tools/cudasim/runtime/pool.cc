// Stream-ordered allocation. Each allocation is fresh memory, so that a pool's reuse hides no bugs;
// pools only count and limit.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>

#include "capture.h"
#include "memory.h"

namespace cudasim::runtime {
namespace {

bool Exists(const State& state, Pool* pool) { return state.pools.count(pool) != 0; }

Work PoolWork(const char* what, const std::shared_ptr<Block>& block) {
  Work work;
  work.type = cudaGraphNodeTypeEmpty;
  work.what = what;
  work.ranges = {{reinterpret_cast<void*>(block->begin), block->size, true}};
  return work;
}

bool Fits(const Pool& pool, size_t size) {
  return pool.max_size == 0 || pool.used + Charge(size) <= pool.max_size;
}

// Finds a stream that may use a pool's memory: one that is not captured.
cudaError_t Find(const Lock& lock, cudaStream_t handle, CUstream_st** stream) {
  if (const cudaError_t error = Sticky(lock); error != cudaSuccess) return error;
  *stream = Resolve(lock, handle);
  if (*stream == nullptr) return cudaErrorInvalidResourceHandle;
  if ((*stream)->capture == nullptr) return cudaSuccess;
  std::fprintf(stderr,
               "cudasim: allocating and freeing within a stream capture is not simulated; "
               "allocate before the capture\n");
  return Capture::Refuse(*stream);
}

// If `pool` is null, uses the current pool of the stream's device.
cudaError_t New(void** result, size_t size, Pool* pool, cudaStream_t handle) {
  State& state = GetState();
  Lock lock(state.mutex);
  if (result == nullptr) return cudaErrorInvalidValue;
  CUstream_st* stream = nullptr;
  if (const cudaError_t error = Find(lock, handle, &stream); error != cudaSuccess) return error;
  if (pool == nullptr) pool = state.devices[stream->device].pool;
  if (!Exists(state, pool)) return cudaErrorInvalidValue;
  *result = nullptr;
  if (size == 0) return cudaSuccess;
  const auto allocate = [&]() -> std::shared_ptr<Block> {
    return Fits(*pool, size) ? Allocate(lock, BlockKind::kDevice, pool->device, size) : nullptr;
  };
  std::shared_ptr<Block> block = allocate();
  if (block == nullptr) {
    // Memory freed on streams becomes available once they reach the free.
    WaitForDevice(lock, pool->device);
    block = allocate();
  }
  if (block == nullptr) return cudaErrorMemoryAllocation;
  block->pool = pool;
  pool->used += Charge(size);
  pool->used_high = std::max(pool->used_high, pool->used);
  *result = reinterpret_cast<void*>(block->begin);
  return SubmitLocked(lock, stream, PoolWork("cudaMallocAsync", block), nullptr);
}

// Frees the memory when the stream reaches this point.
void GiveBack(const std::shared_ptr<Block>& block) {
  std::string damage;
  {
    const Lock lock(GetState().mutex);
    if (block->pool != nullptr) block->pool->used -= Charge(block->size);
    damage = Release(lock, block);
  }
  if (!damage.empty()) ReportBug(block->device, Bug::kOutOfBounds, damage);
}

cudaError_t Free(void* pointer, cudaStream_t handle) {
  if (pointer == nullptr) return cudaSuccess;
  std::string mistake;
  {
    Lock lock(GetState().mutex);
    CUstream_st* stream = nullptr;
    if (const cudaError_t error = Find(lock, handle, &stream); error != cudaSuccess) return error;
    const std::shared_ptr<Block> block = FindBlock(pointer);
    if (block != nullptr && !block->freed && block->kind == BlockKind::kDevice &&
        block->begin == reinterpret_cast<uintptr_t>(pointer)) {
      Work work = PoolWork("cudaFreeAsync", block);
      work.run = [block] {
        GiveBack(block);
        return cudaSuccess;
      };
      block->freed_at = CaptureSite();
      const cudaError_t error = SubmitLocked(lock, stream, std::move(work), nullptr);
      block->freed = error == cudaSuccess;
      return error;
    }
    mistake = block != nullptr && block->freed ? "freed twice: " + DescribeWithSites(*block)
                                               : FreeMistake(lock, pointer);
  }
  if (!mistake.empty()) ReportBug(-1, Bug::kOther, mistake);
  return cudaErrorInvalidValue;
}

cudaError_t NewPool(cudaMemPool_t* result, const cudaMemPoolProps* props) {
  State& state = GetState();
  const Lock lock(state.mutex);
  if (result == nullptr || props == nullptr) return cudaErrorInvalidValue;
  if (const cudaError_t error = Sticky(lock); error != cudaSuccess) return error;
  if (props->allocType != cudaMemAllocationTypePinned ||
      props->location.type != cudaMemLocationTypeDevice || props->location.id < 0 ||
      props->location.id >= static_cast<int>(state.devices.size())) {
    return cudaErrorInvalidValue;
  }
  if (props->handleTypes != cudaMemHandleTypeNone) return cudaErrorNotSupported;
  auto* const pool = new Pool;
  pool->device = props->location.id;
  pool->max_size = props->maxSize;
  state.pools.insert(pool);
  *result = pool;
  return cudaSuccess;
}

cudaError_t DestroyPool(Pool* pool) {
  State& state = GetState();
  Lock lock(state.mutex);
  if (!Exists(state, pool) || pool->is_default) return cudaErrorInvalidValue;
  // Allocations that have not been freed keep their memory.
  WaitForDevice(lock, pool->device);
  for (const auto& block : LiveBlocks()) {
    if (block->pool == pool) block->pool = nullptr;
  }
  Device& device = state.devices[pool->device];
  if (device.pool == pool) device.pool = &device.default_pool;
  state.pools.erase(pool);
  delete pool;
  return cudaSuccess;
}

cudaError_t Attribute(Pool* pool, cudaMemPoolAttr attr, void* value, bool set) {
  State& state = GetState();
  const Lock lock(state.mutex);
  if (!Exists(state, pool) || value == nullptr) return cudaErrorInvalidValue;
  auto* const wide = static_cast<uint64_t*>(value);
  auto* const narrow = static_cast<int*>(value);
  switch (attr) {
    case cudaMemPoolReuseFollowEventDependencies:
    case cudaMemPoolReuseAllowOpportunistic:
    case cudaMemPoolReuseAllowInternalDependencies:
      (set ? pool->reuse[attr] : *narrow) = set ? *narrow : pool->reuse[attr];
      return cudaSuccess;
    case cudaMemPoolAttrReleaseThreshold:
      (set ? pool->release_threshold : *wide) = set ? *wide : pool->release_threshold;
      return cudaSuccess;
    case cudaMemPoolAttrReservedMemCurrent:
    case cudaMemPoolAttrUsedMemCurrent:
      if (set) return cudaErrorInvalidValue;
      *wide = pool->used;
      return cudaSuccess;
    case cudaMemPoolAttrReservedMemHigh:
    case cudaMemPoolAttrUsedMemHigh:
      if (set && *wide != 0) return cudaErrorInvalidValue;
      (set ? pool->used_high : *wide) = set ? pool->used : pool->used_high;
      return cudaSuccess;
  }
  return cudaErrorInvalidValue;
}

// Returns a device's pool, or sets it.
cudaError_t DevicePool(int device, Pool** result, Pool* Device::*current, Pool* set) {
  State& state = GetState();
  const Lock lock(state.mutex);
  if (device < 0 || device >= static_cast<int>(state.devices.size())) {
    return cudaErrorInvalidDevice;
  }
  if (set != nullptr) {
    if (!Exists(state, set) || set->device != device) return cudaErrorInvalidValue;
    state.devices[device].pool = set;
    return cudaSuccess;
  }
  if (result == nullptr) return cudaErrorInvalidValue;
  *result =
      current == nullptr ? &state.devices[device].default_pool : state.devices[device].*current;
  return cudaSuccess;
}

cudaError_t SetAccess(Pool* pool, const cudaMemAccessDesc* accesses, size_t count) {
  State& state = GetState();
  const Lock lock(state.mutex);
  if (!Exists(state, pool) || (accesses == nullptr && count > 0)) return cudaErrorInvalidValue;
  for (size_t i = 0; i < count; ++i) {
    const cudaMemLocation& location = accesses[i].location;
    if (location.type != cudaMemLocationTypeDevice) return cudaErrorInvalidValue;
    if (location.id < 0 || location.id >= static_cast<int>(state.devices.size())) {
      return cudaErrorInvalidDevice;
    }
    if (accesses[i].flags == cudaMemAccessFlagsProtNone) continue;
    // Access rights are kept per device, not per pool.
    state.devices[location.id].peers |= 1u << pool->device;
  }
  return cudaSuccess;
}

}  // namespace
}  // namespace cudasim::runtime

using cudasim::runtime::Return;

cudaError_t cudaMallocAsync(void** devPtr, size_t size, cudaStream_t hStream) {
  return Return(cudasim::runtime::New(devPtr, size, nullptr, hStream));
}

cudaError_t cudaMallocFromPoolAsync(void** ptr, size_t size, cudaMemPool_t memPool,
                                    cudaStream_t stream) {
  if (memPool == nullptr) return Return(cudaErrorInvalidValue);
  return Return(cudasim::runtime::New(ptr, size, memPool, stream));
}

cudaError_t cudaFreeAsync(void* devPtr, cudaStream_t hStream) {
  return Return(cudasim::runtime::Free(devPtr, hStream));
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* memPool, int device) {
  return Return(cudasim::runtime::DevicePool(device, memPool, nullptr, nullptr));
}

cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* memPool, int device) {
  return Return(
      cudasim::runtime::DevicePool(device, memPool, &cudasim::runtime::Device::pool, nullptr));
}

cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t memPool) {
  if (memPool == nullptr) return Return(cudaErrorInvalidValue);
  return Return(cudasim::runtime::DevicePool(device, nullptr, nullptr, memPool));
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t* memPool, const cudaMemPoolProps* poolProps) {
  return Return(cudasim::runtime::NewPool(memPool, poolProps));
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t memPool) {
  return Return(cudasim::runtime::DestroyPool(memPool));
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t memPool, size_t) {
  const cudasim::runtime::Lock lock(cudasim::runtime::GetState().mutex);
  const bool known = cudasim::runtime::GetState().pools.count(memPool) != 0;
  return Return(known ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t memPool, cudaMemPoolAttr attr, void* value) {
  return Return(cudasim::runtime::Attribute(memPool, attr, value, true));
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t memPool, cudaMemPoolAttr attr, void* value) {
  return Return(cudasim::runtime::Attribute(memPool, attr, value, false));
}

cudaError_t cudaMemPoolSetAccess(cudaMemPool_t memPool, const cudaMemAccessDesc* descList,
                                 size_t count) {
  return Return(cudasim::runtime::SetAccess(memPool, descList, count));
}
