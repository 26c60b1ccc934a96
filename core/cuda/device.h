// The CUDA devices of this process.
#pragma once

#include <string>

#include "core/device.h"

namespace lockstep::cuda {

// Whether this process's GPUs are simulated: always without --config=cuda; else if the program
// contains the simulator, or the environment variable LOCKSTEP_SIMULATED_GPU names it. Does not
// change.
bool Simulated();

// The number of GPUs that this process sees; 0 if there is no driver. Throws Error, with the
// remedy, if there is a driver but CUDA does not start: a run must not fall back to the CPU then.
int DeviceCount();

// The device for "auto" (a real GPU, else the CPU), "cpu", "cuda", "cuda:1", "sim" or "sim:1". If
// this process or machine has no such device, throws InputError that says what to do. Simulation is
// never silent: "cuda" is an error where GPUs are simulated.
Device ParseDevice(const std::string& text);

// Makes the device current for this thread's CUDA runtime calls.
void SetDevice(Device device);

}  // namespace lockstep::cuda
