// CUDA's functions for programs that choose a library for them when they run: the simulator, or
// NVIDIA's. Until one is connected they fail as CUDA's own runtime does without a driver. The
// program may contain objects of nvcc's, whose kernels are announced to what is connected. None of
// these functions is thread-safe.
#ifndef CUDASIM_LOADER_LOADER_H_
#define CUDASIM_LOADER_LOADER_H_

#include <string>

namespace cudasim {

// Whether CUDA's functions are the simulator's: it is linked with this program, or has been
// connected.
bool Connected();

// Makes CUDA's functions those of the library, a handle from dlopen of the simulator. Returns null,
// or if the library lacks a function, its name, and then connects nothing.
const char* Connect(void* library);

// Make CUDA's functions those of NVIDIA's runtime (libcudart.so.13), and cuBLASLt's those of
// NVIDIA's cuBLASLt (libcublasLt.so.13), found as the dynamic linker finds libraries. Return an
// empty text, or why that failed; after a failure they may be called again. Once the simulator is
// connected they do nothing. NCCL's functions stay as they are.
std::string ConnectNvidiaRuntime();
std::string ConnectNvidiaCublasLt();

}  // namespace cudasim

#endif  // CUDASIM_LOADER_LOADER_H_
