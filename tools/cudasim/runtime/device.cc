// Devices, their properties, peer access.
#include <cstdio>
#include <cstring>

#include "cudasim/contexts.h"
#include "cudasim/settings.h"
#include "limits.h"
#include "memory.h"
#include "state.h"

namespace cudasim::runtime {
namespace {

bool Exists(int device) {
  return device >= 0 && device < static_cast<int>(GetState().devices.size());
}

void FillProperties(cudaDeviceProp* prop, int device) {
  *prop = {};
  std::snprintf(prop->name, sizeof(prop->name), "Simulated GPU");
  std::snprintf(prop->uuid.bytes, sizeof(prop->uuid.bytes), "cudasim-%d", device);
  prop->totalGlobalMem = GetSettings().memory;
  prop->sharedMemPerBlock = kSharedPerBlock;
  prop->regsPerBlock = kRegisters;
  prop->warpSize = 32;
  prop->memPitch = 2147483647;
  prop->maxThreadsPerBlock = kMaxThreadsPerBlock;
  std::memcpy(prop->maxThreadsDim, kMaxBlock, sizeof(kMaxBlock));
  std::memcpy(prop->maxGridSize, kMaxGrid, sizeof(kMaxGrid));
  prop->totalConstMem = kConstant;
  prop->major = Major();
  prop->minor = Minor();
  prop->textureAlignment = 512;
  prop->texturePitchAlignment = 32;
  prop->multiProcessorCount = kMultiprocessors;
  prop->canMapHostMemory = 1;
  prop->concurrentKernels = 1;
  prop->pciBusID = device + 1;
  prop->asyncEngineCount = 3;
  prop->unifiedAddressing = 1;
  prop->memoryBusWidth = kMemoryBusBits;
  prop->l2CacheSize = kL2;
  prop->maxThreadsPerMultiProcessor = kMaxThreadsPerMultiprocessor;
  prop->streamPrioritiesSupported = 1;
  prop->globalL1CacheSupported = 1;
  prop->localL1CacheSupported = 1;
  prop->sharedMemPerMultiprocessor = SharedPerMultiprocessor();
  prop->regsPerMultiprocessor = kRegisters;
  prop->managedMemory = 1;
  prop->concurrentManagedAccess = 1;
  prop->computePreemptionSupported = 1;
  prop->canUseHostPointerForRegisteredMem = 1;
  prop->cooperativeLaunch = 1;
  prop->sharedMemPerBlockOptin = SharedPerBlockOptIn();
  prop->maxBlocksPerMultiProcessor = kMaxBlocksPerMultiprocessor;
  prop->reservedSharedMemPerBlock = kSharedReserved;
  prop->hostRegisterSupported = 1;
  prop->memoryPoolsSupported = 1;
}

// -1 for an unknown attribute.
int Attribute(cudaDeviceAttr attr, int device) {
  switch (attr) {
    case cudaDevAttrMaxThreadsPerBlock:
      return kMaxThreadsPerBlock;
    case cudaDevAttrMaxBlockDimX:
      return kMaxBlock[0];
    case cudaDevAttrMaxBlockDimY:
      return kMaxBlock[1];
    case cudaDevAttrMaxBlockDimZ:
      return kMaxBlock[2];
    case cudaDevAttrMaxGridDimX:
      return kMaxGrid[0];
    case cudaDevAttrMaxGridDimY:
      return kMaxGrid[1];
    case cudaDevAttrMaxGridDimZ:
      return kMaxGrid[2];
    case cudaDevAttrMaxSharedMemoryPerBlock:
      return kSharedPerBlock;
    case cudaDevAttrTotalConstantMemory:
      return kConstant;
    case cudaDevAttrWarpSize:
      return 32;
    case cudaDevAttrMaxPitch:
      return 2147483647;
    case cudaDevAttrMaxRegistersPerBlock:
      return kRegisters;
    case cudaDevAttrClockRate:
      return kClockKhz;
    case cudaDevAttrTextureAlignment:
      return 512;
    case cudaDevAttrMultiProcessorCount:
      return kMultiprocessors;
    case cudaDevAttrComputeMode:
      return cudaComputeModeDefault;
    case cudaDevAttrPciBusId:
      return device + 1;
    case cudaDevAttrMemoryClockRate:
      return kMemoryClockKhz;
    case cudaDevAttrGlobalMemoryBusWidth:
      return kMemoryBusBits;
    case cudaDevAttrL2CacheSize:
      return kL2;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      return kMaxThreadsPerMultiprocessor;
    case cudaDevAttrAsyncEngineCount:
      return 3;
    case cudaDevAttrComputeCapabilityMajor:
      return Major();
    case cudaDevAttrComputeCapabilityMinor:
      return Minor();
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      return SharedPerMultiprocessor();
    case cudaDevAttrMaxRegistersPerMultiprocessor:
      return kRegisters;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      return SharedPerBlockOptIn();
    case cudaDevAttrMaxBlocksPerMultiprocessor:
      return kMaxBlocksPerMultiprocessor;
    case cudaDevAttrReservedSharedMemoryPerBlock:
      return kSharedReserved;
    case cudaDevAttrGpuOverlap:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrStreamPrioritiesSupported:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrConcurrentManagedAccess:
    case cudaDevAttrCanUseHostPointerForRegisteredMem:
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrHostRegisterSupported:
    case cudaDevAttrMemoryPoolsSupported:
      return 1;
    case cudaDevAttrKernelExecTimeout:
    case cudaDevAttrIntegrated:
    case cudaDevAttrEccEnabled:
    case cudaDevAttrPciDeviceId:
    case cudaDevAttrPciDomainId:
    case cudaDevAttrPageableMemoryAccess:
    case cudaDevAttrClusterLaunch:
      return 0;
  }
  return -1;
}

// Frees everything on the current device and clears its error. Handles of its streams and events
// become invalid.
cudaError_t Reset() {
  State& state = GetState();
  Lock lock(state.mutex);
  if (state.devices.empty()) return cudaErrorNoDevice;
  const int index = GetThread().device;
  WaitForDevice(lock, index);
  for (auto stream = state.streams.begin(); stream != state.streams.end();) {
    if ((*stream)->device == index) {
      (*stream)->destroyed = true;
      stream = state.streams.erase(stream);
    } else {
      ++stream;
    }
  }
  std::erase_if(state.events, [&](const CUevent_st* event) { return event->device == index; });
  for (const auto& block : LiveBlocks()) {
    if (block->device != index || block->kind == BlockKind::kRegistered || block->permanent) {
      continue;
    }
    if (block->pool != nullptr) block->pool->used -= Charge(block->size);
    Release(lock, block);
  }
  Device& device = state.devices[index];
  device.sticky = cudaSuccess;
  device.context = false;
  device.peers = 0;
  device.pool = &device.default_pool;
  state.changed.notify_all();
  return cudaSuccess;
}

void OpenContext(int device) {
  const Lock lock(GetState().mutex);
  GetState().devices[device].context = true;
}

cudaError_t SetPeer(int peer, bool enable) {
  State& state = GetState();
  const Lock lock(state.mutex);
  if (const cudaError_t error = Sticky(lock); error != cudaSuccess) return error;
  if (!Exists(peer) || peer == GetThread().device) return cudaErrorInvalidDevice;
  auto& peers = CurrentDevice(lock).peers;
  const unsigned bit = 1u << peer;
  const bool enabled = (peers & bit) != 0;
  if (enable && enabled) return cudaErrorPeerAccessAlreadyEnabled;
  if (!enable && !enabled) return cudaErrorPeerAccessNotEnabled;
  if (enable) {
    peers |= bit;
  } else {
    peers &= ~bit;
  }
  return cudaSuccess;
}

}  // namespace

std::vector<int> DevicesWithContext() {
  const Lock lock(GetState().mutex);
  std::vector<int> indices;
  for (const Device& device : GetState().devices) {
    if (device.context) indices.push_back(device.index);
  }
  return indices;
}

}  // namespace cudasim::runtime

using cudasim::runtime::Exists;
using cudasim::runtime::GetState;
using cudasim::runtime::GetThread;
using cudasim::runtime::Return;

cudaError_t cudaGetDeviceCount(int* count) {
  if (count == nullptr) return Return(cudaErrorInvalidValue);
  if (const int error = cudasim::runtime::GetSettings().startup_error; error != 0) {
    return Return(static_cast<cudaError_t>(error));
  }
  *count = static_cast<int>(GetState().devices.size());
  return Return(*count == 0 ? cudaErrorNoDevice : cudaSuccess);
}

cudaError_t cudaGetDevice(int* device) {
  if (device == nullptr) return Return(cudaErrorInvalidValue);
  if (GetState().devices.empty()) return Return(cudaErrorNoDevice);
  *device = GetThread().device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (GetState().devices.empty()) return Return(cudaErrorNoDevice);
  if (!Exists(device)) return Return(cudaErrorInvalidDevice);
  GetThread().device = device;
  cudasim::runtime::OpenContext(device);
  return cudaSuccess;
}

cudaError_t cudaInitDevice(int device, unsigned int, unsigned int) {
  if (!Exists(device)) return Return(cudaErrorInvalidDevice);
  cudasim::runtime::OpenContext(device);
  return cudaSuccess;
}

cudaError_t cudaSetDeviceFlags(unsigned int flags) {
  constexpr unsigned kKnown = 0xff;
  return Return((flags & ~kKnown) == 0 ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaGetDeviceFlags(unsigned int* flags) {
  if (flags == nullptr) return Return(cudaErrorInvalidValue);
  *flags = cudaDeviceScheduleAuto | cudaDeviceMapHost;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* prop, int device) {
  if (prop == nullptr) return Return(cudaErrorInvalidValue);
  if (!Exists(device)) return Return(cudaErrorInvalidDevice);
  cudasim::runtime::FillProperties(prop, device);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attr, int device) {
  if (value == nullptr) return Return(cudaErrorInvalidValue);
  if (!Exists(device)) return Return(cudaErrorInvalidDevice);
  const int found = cudasim::runtime::Attribute(attr, device);
  if (found < 0) return Return(cudaErrorInvalidValue);
  *value = found;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* pciBusId, int len, int device) {
  if (pciBusId == nullptr || len < 13) return Return(cudaErrorInvalidValue);
  if (!Exists(device)) return Return(cudaErrorInvalidDevice);
  std::snprintf(pciBusId, len, "0000:%02X:00.0", device + 1);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* pciBusId) {
  if (device == nullptr || pciBusId == nullptr) return Return(cudaErrorInvalidValue);
  char text[32];
  for (int i = 0; Exists(i); ++i) {
    std::snprintf(text, sizeof(text), "0000:%02X:00.0", i + 1);
    if (std::strcmp(text, pciBusId) != 0) continue;
    *device = i;
    return cudaSuccess;
  }
  return Return(cudaErrorInvalidDevice);
}

cudaError_t cudaDeviceGetLimit(size_t* pValue, cudaLimit limit) {
  if (pValue == nullptr) return Return(cudaErrorInvalidValue);
  switch (limit) {
    case cudaLimitStackSize:
      *pValue = 1024;
      return cudaSuccess;
    case cudaLimitPrintfFifoSize:
      *pValue = 1 << 20;
      return cudaSuccess;
    case cudaLimitMallocHeapSize:
      *pValue = 8 << 20;
      return cudaSuccess;
  }
  return Return(cudaErrorUnsupportedLimit);
}

cudaError_t cudaDeviceSetLimit(cudaLimit limit, size_t) {
  const bool known = limit >= cudaLimitStackSize && limit <= cudaLimitMallocHeapSize;
  return Return(known ? cudaSuccess : cudaErrorUnsupportedLimit);
}

cudaError_t cudaDeviceReset() { return Return(cudasim::runtime::Reset()); }

cudaError_t cudaDeviceCanAccessPeer(int* canAccessPeer, int device, int peerDevice) {
  if (canAccessPeer == nullptr) return Return(cudaErrorInvalidValue);
  if (!Exists(device) || !Exists(peerDevice)) return Return(cudaErrorInvalidDevice);
  *canAccessPeer = device != peerDevice ? 1 : 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peerDevice, unsigned int flags) {
  if (flags != 0) return Return(cudaErrorInvalidValue);
  return Return(cudasim::runtime::SetPeer(peerDevice, true));
}

cudaError_t cudaDeviceDisablePeerAccess(int peerDevice) {
  return Return(cudasim::runtime::SetPeer(peerDevice, false));
}

cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr attr, int srcDevice,
                                      int dstDevice) {
  if (value == nullptr || srcDevice == dstDevice) return Return(cudaErrorInvalidValue);
  if (!Exists(srcDevice) || !Exists(dstDevice)) return Return(cudaErrorInvalidDevice);
  *value = attr == cudaDevP2PAttrAccessSupported || attr == cudaDevP2PAttrNativeAtomicSupported;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* driverVersion) {
  if (driverVersion == nullptr) return Return(cudaErrorInvalidValue);
  *driverVersion = cudasim::runtime::kCudaVersion;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* runtimeVersion) {
  return cudaDriverGetVersion(runtimeVersion);
}

cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }
