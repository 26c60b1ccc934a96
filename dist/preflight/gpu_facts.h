// What a preflight asks of a rank's GPU, its driver and its libraries.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "core/device.h"
#include "dist/preflight/facts.h"

namespace lockstep::dist {

// Throws CudaError.
GpuFacts FactsOfGpu(Device device);

// Of the CUDA driver and runtime, of cuBLASLt, NCCL and, where they are installed, cuDNN and the
// kernel's module. Throws Error if there is no NCCL.
std::map<std::string, std::string> GpuVersions();

// The clocks of the GPU at this PCI bus ID, as NVML says; nullopt where it says nothing.
std::optional<GpuClocks> ClocksOfGpu(const std::string& bus);

}  // namespace lockstep::dist
