#include "core/device.h"

#include <ostream>

#include "core/error.h"

namespace lockstep {
namespace {
constinit const char* cuda_name = "cuda";
}

std::string_view Name(DeviceType type) {
  switch (type) {
    case DeviceType::kCpu:
      return "CPU";
    case DeviceType::kCuda:
      return "CUDA";
    case DeviceType::kMeta:
      return "meta";
  }
  return "unknown";
}

std::string ToString(Device device) {
  if (device.is_cpu()) return "cpu";
  if (device.is_meta()) return "meta";
  return StrCat(cuda_name, ":", device.index);
}

void NameCudaDevices(const char* name) { cuda_name = name; }

std::ostream& operator<<(std::ostream& out, Device device) { return out << ToString(device); }

}  // namespace lockstep
