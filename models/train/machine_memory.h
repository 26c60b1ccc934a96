// Whether a run fits the memory of the machine, or of the GPU, that it is to run on.
#pragma once

#include <cstdint>
#include <string>

#include "core/device.h"
#include "models/train/memory_plan.h"
#include "models/train/run_setup.h"

namespace lockstep::models {

struct DeviceMemory {
  int64_t total = 0;  // bytes that the device has; of a machine, at most what its cgroup may take
  int64_t free = 0;   // of these not in use by anyone
};

// Of the GPU, or for the CPU of the machine. Zeros where the system does not tell.
DeviceMemory MemoryOf(Device device);

// Bytes of this process's memory that are in RAM; of its largest so far.
int64_t ResidentBytes();
int64_t PeakResidentBytes();

// What to lower where a run takes too much: the model, where it alone, with its gradients and
// state, would fill the `available` bytes that a process has, or is most of the plan; else what
// takes most.
std::string MemoryAdvice(const MemoryPlan& plan, const RunSetup& setup, int64_t available);

struct MemoryVerdict {
  enum class Kind { kFits, kTight, kTooLarge } kind = Kind::kFits;
  std::string text;  // a sentence with what to change; empty if it fits
};

// `processes` of the run share the machine's memory; a GPU is one's own. kTooLarge: more than there
// is at all; kTight: more than is free now.
MemoryVerdict JudgeMemory(const MemoryPlan& plan, const RunSetup& setup, const DeviceMemory& memory,
                          int64_t processes);

}  // namespace lockstep::models
