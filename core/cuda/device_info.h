// What a GPU is, and how much memory it has left.
#pragma once

#include <cstdint>
#include <string>

#include "core/device.h"

namespace lockstep::cuda {

struct DeviceInfo {
  std::string name;         // "NVIDIA H200"
  int64_t total_bytes = 0;  // of its memory
  int64_t free_bytes = 0;   // not taken by this process or another
};

// Throws CudaError.
DeviceInfo GetDeviceInfo(Device device);

}  // namespace lockstep::cuda
