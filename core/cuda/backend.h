// How programs get CUDA's functions: linked (backend.cc), or loaded as they choose
// (backend_either.cc). For the files of this folder.
#pragma once

#include <string>

namespace lockstep::cuda {

// Whether programs contain nvcc's objects and choose the runtime when they run (--config=either).
extern const bool kLoadsEitherRuntime;

// Then these make CUDA's functions those of NVIDIA's libraries, unless this process simulates its
// GPUs. Return an empty text, or why they cannot.
std::string ConnectNvidiaRuntime();
std::string ConnectNvidiaCublasLt();

}  // namespace lockstep::cuda
