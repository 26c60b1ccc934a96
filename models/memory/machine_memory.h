// Whether a run fits in the memory of the machine, or of the GPU, that it will use.
#pragma once

#include <cstdint>
#include <string>

#include "core/device.h"
#include "models/memory/memory_plan.h"
#include "models/train/run_setup.h"

namespace lockstep::models {

// Of a GPU that is only planned for: a CUDA context with the kernels of cuBLAS and NCCL takes 0.3
// to 0.6 GB.
inline constexpr int64_t kCudaBytes = 600'000'000;

struct DeviceMemory {
  int64_t total = 0;  // bytes that the device has; for the CPU at most the cgroup's limit
  int64_t free = 0;   // of these, not in use
};

// The memory of the GPU or, for the CPU, of the machine. Zeros if the system does not say.
DeviceMemory MemoryOf(Device device);

// The machine's swap space; 0 if it has none, or the system does not say.
int64_t SwapBytes();

// A line for a plan's table: "  there are          8.00 GiB, of which 7.91 GiB are free".
std::string Describe(const DeviceMemory& memory);

// Bytes of this process that are in RAM now, and at their peak.
int64_t ResidentBytes();
int64_t PeakResidentBytes();

struct MemoryFit {
  // kTooLarge: more than there is in total; kTight: more than is free now.
  enum class Kind { kFits, kTight, kTooLarge } kind = Kind::kFits;
  std::string text;  // sentences with what would fit; empty if it fits
};

// `processes` of the run share the machine's memory; each has a GPU of its own.
MemoryFit::Kind FitOf(const MemoryPlan& plan, Device device, const DeviceMemory& memory,
                      int64_t processes);
// For a run on GPUs: whether their host has the memory that these processes take there. kTooLarge:
// more than it has would be page-locked; kTight: with the copies from which checkpoints are written
// it is more than is free.
MemoryFit::Kind HostFitOf(const MemoryPlan& plan, Device device, const DeviceMemory& host,
                          int64_t processes);
// The same in words.
MemoryFit JudgeHost(const MemoryPlan& plan, Device device, const DeviceMemory& host,
                    int64_t processes, ByteFormat format = FormatBytes);
// Both in words, with a MemoryAdvice. `host`: of a run on GPUs; zeros: not known.
MemoryFit JudgeMemory(const MemoryPlan& plan, const RunSetup& setup, const DeviceMemory& memory,
                      int64_t processes, const DeviceMemory& host = {});

}  // namespace lockstep::models
