// Prints where each member lies in the structures that programs pass to CUDA's runtime. Compiled
// twice, against NVIDIA's headers and against the simulator's: the texts must be the same.
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdio>

#define TYPE(type) \
  using T = type;  \
  std::printf("%s: %zu bytes, aligned to %zu\n", #type, sizeof(T), alignof(T));
#define AT(member) std::printf("  %s at %zu\n", #member, offsetof(T, member));

int main() {
  // clang-format off
  {
    TYPE(cudaDeviceProp)
    AT(name) AT(uuid) AT(luid) AT(luidDeviceNodeMask) AT(totalGlobalMem) AT(sharedMemPerBlock)
    AT(regsPerBlock) AT(warpSize) AT(memPitch) AT(maxThreadsPerBlock) AT(maxThreadsDim)
    AT(maxGridSize) AT(totalConstMem) AT(major) AT(minor) AT(textureAlignment)
    AT(texturePitchAlignment) AT(multiProcessorCount) AT(integrated) AT(canMapHostMemory)
    AT(surfaceAlignment) AT(concurrentKernels) AT(ECCEnabled) AT(pciBusID) AT(pciDeviceID)
    AT(pciDomainID) AT(tccDriver) AT(asyncEngineCount) AT(unifiedAddressing) AT(memoryBusWidth)
    AT(l2CacheSize) AT(persistingL2CacheMaxSize) AT(maxThreadsPerMultiProcessor)
    AT(streamPrioritiesSupported) AT(globalL1CacheSupported) AT(localL1CacheSupported)
    AT(sharedMemPerMultiprocessor) AT(regsPerMultiprocessor) AT(managedMemory) AT(isMultiGpuBoard)
    AT(multiGpuBoardGroupID) AT(hostNativeAtomicSupported) AT(pageableMemoryAccess)
    AT(concurrentManagedAccess) AT(computePreemptionSupported) AT(canUseHostPointerForRegisteredMem)
    AT(cooperativeLaunch) AT(sharedMemPerBlockOptin) AT(pageableMemoryAccessUsesHostPageTables)
    AT(directManagedMemAccessFromHost) AT(maxBlocksPerMultiProcessor) AT(accessPolicyMaxWindowSize)
    AT(reservedSharedMemPerBlock) AT(hostRegisterSupported) AT(sparseCudaArraySupported)
    AT(hostRegisterReadOnlySupported) AT(timelineSemaphoreInteropSupported) AT(memoryPoolsSupported)
    AT(gpuDirectRDMASupported) AT(gpuDirectRDMAFlushWritesOptions) AT(gpuDirectRDMAWritesOrdering)
    AT(memoryPoolSupportedHandleTypes) AT(deferredMappingCudaArraySupported) AT(ipcEventSupported)
    AT(clusterLaunch) AT(unifiedFunctionPointers) AT(deviceNumaConfig) AT(deviceNumaId)
    AT(mpsEnabled) AT(hostNumaId) AT(gpuPciDeviceID) AT(gpuPciSubsystemID)
    AT(hostNumaMultinodeIpcSupported) AT(reserved)
  }
  {
    TYPE(cudaFuncAttributes)
    AT(sharedSizeBytes) AT(constSizeBytes) AT(localSizeBytes) AT(maxThreadsPerBlock) AT(numRegs)
    AT(ptxVersion) AT(binaryVersion) AT(cacheModeCA) AT(maxDynamicSharedSizeBytes)
    AT(preferredShmemCarveout) AT(clusterDimMustBeSet) AT(requiredClusterWidth)
    AT(requiredClusterHeight) AT(requiredClusterDepth) AT(clusterSchedulingPolicyPreference)
    AT(nonPortableClusterSizeAllowed) AT(reserved)
  }
  {
    TYPE(cudaLaunchConfig_t)
    AT(gridDim) AT(blockDim) AT(dynamicSmemBytes) AT(stream) AT(attrs) AT(numAttrs)
  }
  {
    TYPE(cudaLaunchAttribute)
    AT(id) AT(val) AT(val.cooperative)
  }
  {
    TYPE(cudaPointerAttributes)
    AT(type) AT(device) AT(devicePointer) AT(hostPointer) AT(reserved)
  }
  {
    TYPE(cudaMemPoolProps)
    AT(allocType) AT(handleTypes) AT(location.type) AT(location.id) AT(win32SecurityAttributes)
    AT(maxSize) AT(usage) AT(reserved)
  }
  {
    TYPE(cudaMemAccessDesc)
    AT(location) AT(flags)
  }
  {
    TYPE(cudaGraphEdgeData)
    AT(from_port) AT(to_port) AT(type) AT(reserved)
  }
  {
    TYPE(cudaGraphExecUpdateResultInfo)
    AT(result) AT(errorNode) AT(errorFromNode)
  }
  {
    TYPE(cudaMemcpy3DParms)
    AT(srcArray) AT(srcPos.x) AT(srcPos.y) AT(srcPos.z) AT(srcPtr.ptr) AT(srcPtr.pitch)
    AT(srcPtr.xsize) AT(srcPtr.ysize) AT(dstArray) AT(dstPos) AT(dstPtr) AT(extent.width)
    AT(extent.height) AT(extent.depth) AT(kind)
  }
  {
    TYPE(cudaKernelNodeParams)
    AT(func) AT(gridDim) AT(blockDim) AT(sharedMemBytes) AT(kernelParams) AT(extra)
  }
  {
    TYPE(cudaMemsetParams)
    AT(dst) AT(pitch) AT(value) AT(elementSize) AT(width) AT(height)
  }
  {
    TYPE(cudaHostNodeParams)
    AT(fn) AT(userData)
  }
  { TYPE(dim3) AT(x) AT(y) AT(z) }
  // clang-format on
}
