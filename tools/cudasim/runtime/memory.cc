// cudaMalloc and cudaFree, pinned and registered memory, cudaPointerGetAttributes.
#include "memory.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "capture.h"
#include "cudasim/settings.h"

namespace cudasim::runtime {

size_t Charge(size_t size) { return (size + 511) / 512 * 512; }

std::shared_ptr<Block> Allocate(const Lock&, BlockKind kind, int device, size_t size) {
  State& state = GetState();
  const bool on_device = kind == BlockKind::kDevice || kind == BlockKind::kManaged;
  Device& owner = state.devices[device];
  const size_t memory = GetSettings().memory;
  if (on_device && (size > memory || owner.used + Charge(size) > memory)) return nullptr;
  auto block = std::make_shared<Block>();
  block->kind = kind;
  block->device = device;
  block->size = size;
  block->allocated = CaptureSite();
  if (!MapBlock(block.get())) return nullptr;
  if (on_device) owner.used += Charge(size);
  AddBlock(block);
  return block;
}

std::string Release(const Lock&, const std::shared_ptr<Block>& block) {
  if (block->kind == BlockKind::kDevice || block->kind == BlockKind::kManaged) {
    GetState().devices[block->device].used -= Charge(block->size);
  }
  RemoveBlock(block);
  const std::string damage = UnmapBlock(block.get());
  if (damage.empty()) return {};
  return "found when freeing: " + damage + " were overwritten: " + DescribeWithSites(*block);
}

std::string FreeMistake(const Lock&, const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  const std::shared_ptr<Block> block = FindNear(address);
  if (block == nullptr) return {};
  if (block->freed && block->begin == address) {
    return "freed twice: " + DescribeWithSites(*block);
  }
  if (block->contains(address)) {
    return "freed at byte " + std::to_string(address - block->begin) +
           " of a block, not at its "
           "beginning: " +
           DescribeWithSites(*block);
  }
  return {};
}

namespace {

bool IsOf(const Block& block, bool host) {
  return host ? block.kind == BlockKind::kPinned
              : block.kind == BlockKind::kDevice || block.kind == BlockKind::kManaged;
}

cudaError_t New(BlockKind kind, void** result, size_t size, unsigned flags) {
  const Lock lock(GetState().mutex);
  if (result == nullptr) return cudaErrorInvalidValue;
  if (const cudaError_t error = Sticky(lock); error != cudaSuccess) return error;
  if (const cudaError_t error = CheckUnsafeCall(lock); error != cudaSuccess) return error;
  *result = nullptr;
  if (size == 0) return cudaSuccess;
  const std::shared_ptr<Block> block = Allocate(lock, kind, GetThread().device, size);
  if (block == nullptr) return cudaErrorMemoryAllocation;
  block->flags = flags;
  *result = reinterpret_cast<void*>(block->begin);
  return cudaSuccess;
}

// As the real function does, waits until no enqueued work can still use the memory.
cudaError_t Free(void* pointer, bool host) {
  if (pointer == nullptr) return cudaSuccess;
  std::string bug;
  cudaError_t error = cudaSuccess;
  int device = -1;
  {
    State& state = GetState();
    Lock lock(state.mutex);
    if (error = Sticky(lock); error != cudaSuccess) return error;
    if (error = CheckUnsafeCall(lock); error != cudaSuccess) return error;
    std::shared_ptr<Block> block = FindBlock(pointer);
    if (block != nullptr && !block->freed && IsOf(*block, host) &&
        block->begin == reinterpret_cast<uintptr_t>(pointer)) {
      device = block->device;
      block->freed = true;
      block->freed_at = CaptureSite();
      WaitForDevice(lock, device);
      if (block->pool != nullptr) block->pool->used -= Charge(block->size);
      bug = Release(lock, block);
    } else {
      bug = FreeMistake(lock, pointer);
      error = cudaErrorInvalidValue;
    }
  }
  if (!bug.empty()) {
    ReportBug(device, error == cudaSuccess ? Bug::kOutOfBounds : Bug::kOther, bug);
  }
  return error;
}

cudaError_t Register(void* pointer, size_t size, unsigned flags) {
  const Lock lock(GetState().mutex);
  if (pointer == nullptr || size == 0) return cudaErrorInvalidValue;
  constexpr unsigned kKnown =
      cudaHostRegisterPortable | cudaHostRegisterMapped | cudaHostRegisterReadOnly;
  if ((flags & ~kKnown) != 0) return cudaErrorInvalidValue;
  if (const cudaError_t error = Sticky(lock); error != cudaSuccess) return error;
  if (const cudaError_t error = CheckUnsafeCall(lock); error != cudaSuccess) return error;
  const auto begin = reinterpret_cast<uintptr_t>(pointer);
  for (const auto& block : LiveBlocks()) {
    if (begin < block->end() && block->begin < begin + size) {
      return cudaErrorHostMemoryAlreadyRegistered;
    }
  }
  auto block = std::make_shared<Block>();
  block->kind = BlockKind::kRegistered;
  block->device = GetThread().device;
  block->begin = begin;
  block->size = size;
  block->flags = flags;
  block->allocated = CaptureSite();
  AddBlock(std::move(block));
  return cudaSuccess;
}

cudaError_t Unregister(void* pointer) {
  Lock lock(GetState().mutex);
  if (const cudaError_t error = Sticky(lock); error != cudaSuccess) return error;
  if (const cudaError_t error = CheckUnsafeCall(lock); error != cudaSuccess) return error;
  const std::shared_ptr<Block> block = FindBlock(pointer);
  if (pointer == nullptr) return cudaErrorInvalidValue;
  if (block == nullptr || block->kind != BlockKind::kRegistered ||
      block->begin != reinterpret_cast<uintptr_t>(pointer)) {
    return cudaErrorHostMemoryNotRegistered;
  }
  WaitForDevice(lock, block->device);
  RemoveBlock(block);
  return cudaSuccess;
}

cudaError_t Attributes(cudaPointerAttributes* attributes, const void* pointer) {
  const Lock lock(GetState().mutex);
  if (attributes == nullptr) return cudaErrorInvalidValue;
  if (const cudaError_t error = Sticky(lock); error != cudaSuccess) return error;
  *attributes = {};
  auto* const address = const_cast<void*>(pointer);
  const std::shared_ptr<Block> block = FindBlock(pointer);
  if (block == nullptr || block->freed) {
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->device = -2;  // cudaInvalidDeviceId.
    attributes->hostPointer = address;
    return cudaSuccess;
  }
  attributes->device = block->device;
  attributes->devicePointer = address;
  attributes->hostPointer = block->kind == BlockKind::kDevice ? nullptr : address;
  attributes->type = block->kind == BlockKind::kDevice    ? cudaMemoryTypeDevice
                     : block->kind == BlockKind::kManaged ? cudaMemoryTypeManaged
                                                          : cudaMemoryTypeHost;
  return cudaSuccess;
}

cudaError_t HostBlock(const void* pointer, std::shared_ptr<Block>* block) {
  const Lock lock(GetState().mutex);
  if (const cudaError_t error = Sticky(lock); error != cudaSuccess) return error;
  *block = FindBlock(pointer);
  const bool found = *block != nullptr && ((*block)->kind == BlockKind::kPinned ||
                                           (*block)->kind == BlockKind::kRegistered);
  return found ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace
}  // namespace cudasim::runtime

using cudasim::runtime::BlockKind;
using cudasim::runtime::GetState;
using cudasim::runtime::Lock;
using cudasim::runtime::Return;

cudaError_t cudaMalloc(void** devPtr, size_t size) {
  return Return(cudasim::runtime::New(BlockKind::kDevice, devPtr, size, 0));
}

cudaError_t cudaMallocManaged(void** devPtr, size_t size, unsigned int flags) {
  if ((flags != cudaMemAttachGlobal && flags != cudaMemAttachHost) || size == 0) {
    return Return(cudaErrorInvalidValue);
  }
  return Return(cudasim::runtime::New(BlockKind::kManaged, devPtr, size, flags));
}

cudaError_t cudaMallocPitch(void** devPtr, size_t* pitch, size_t width, size_t height) {
  if (pitch == nullptr) return Return(cudaErrorInvalidValue);
  *pitch = (width + 511) / 512 * 512;
  return cudaMalloc(devPtr, *pitch * height);
}

cudaError_t cudaMalloc3D(cudaPitchedPtr* pitchedDevPtr, cudaExtent extent) {
  if (pitchedDevPtr == nullptr) return Return(cudaErrorInvalidValue);
  pitchedDevPtr->xsize = extent.width;
  pitchedDevPtr->ysize = extent.height;
  return cudaMallocPitch(&pitchedDevPtr->ptr, &pitchedDevPtr->pitch, extent.width,
                         extent.height * extent.depth);
}

cudaError_t cudaFree(void* devPtr) { return Return(cudasim::runtime::Free(devPtr, false)); }

cudaError_t cudaMallocHost(void** ptr, size_t size) {
  return cudaHostAlloc(ptr, size, cudaHostAllocDefault);
}

cudaError_t cudaHostAlloc(void** pHost, size_t size, unsigned int flags) {
  constexpr unsigned kKnown =
      cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined;
  if ((flags & ~kKnown) != 0) return Return(cudaErrorInvalidValue);
  return Return(cudasim::runtime::New(BlockKind::kPinned, pHost, size, flags));
}

cudaError_t cudaFreeHost(void* ptr) { return Return(cudasim::runtime::Free(ptr, true)); }

cudaError_t cudaHostRegister(void* ptr, size_t size, unsigned int flags) {
  return Return(cudasim::runtime::Register(ptr, size, flags));
}

cudaError_t cudaHostUnregister(void* ptr) { return Return(cudasim::runtime::Unregister(ptr)); }

cudaError_t cudaHostGetDevicePointer(void** pDevice, void* pHost, unsigned int flags) {
  std::shared_ptr<cudasim::runtime::Block> block;
  if (pDevice == nullptr || flags != 0) return Return(cudaErrorInvalidValue);
  const cudaError_t error = cudasim::runtime::HostBlock(pHost, &block);
  *pDevice = error == cudaSuccess ? pHost : nullptr;
  return Return(error);
}

cudaError_t cudaHostGetFlags(unsigned int* pFlags, void* pHost) {
  std::shared_ptr<cudasim::runtime::Block> block;
  if (pFlags == nullptr) return Return(cudaErrorInvalidValue);
  const cudaError_t error = cudasim::runtime::HostBlock(pHost, &block);
  if (error == cudaSuccess) *pFlags = block->flags;
  return Return(error);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* ptr) {
  return Return(cudasim::runtime::Attributes(attributes, ptr));
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  const Lock lock(GetState().mutex);
  if (free == nullptr || total == nullptr) return Return(cudaErrorInvalidValue);
  if (const cudaError_t error = cudasim::runtime::Sticky(lock); error != cudaSuccess) {
    return Return(error);
  }
  *total = cudasim::runtime::GetSettings().memory;
  *free = *total - std::min(*total, cudasim::runtime::CurrentDevice(lock).used);
  return cudaSuccess;
}
