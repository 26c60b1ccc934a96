// The CUDA devices of this process: real GPUs with --config=cuda, simulated ones otherwise.
#pragma once

#include <string>

#include "core/device.h"

namespace lockstep::cuda {

extern const bool kSimulated;

// GPUs that this process sees; 0 where there is no driver.
int DeviceCount();

// The device that the user means by "auto" (a real GPU, else the CPU), "cpu", "cuda", "cuda:1",
// "sim" or "sim:1". InputError where this build or machine has none, with what to do: simulation is
// never silent, so "cuda" in a simulated build is an error.
Device ParseDevice(const std::string& text);

// Makes the device current for this thread's calls of the CUDA runtime.
void SetDevice(Device device);

}  // namespace lockstep::cuda
