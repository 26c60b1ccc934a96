#include "core/cuda/device_info.h"

#include "core/cuda/device.h"
#include "core/cuda/error.h"

namespace lockstep::cuda {

DeviceInfo GetDeviceInfo(Device device) {
  SetDevice(device);
  cudaDeviceProp properties;
  LS_CUDA(cudaGetDeviceProperties(&properties, device.index));
  size_t free = 0, total = 0;
  LS_CUDA(cudaMemGetInfo(&free, &total));
  return {properties.name, static_cast<int64_t>(total), static_cast<int64_t>(free)};
}

}  // namespace lockstep::cuda
