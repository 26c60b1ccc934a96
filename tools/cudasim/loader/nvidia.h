// NVIDIA's libraries instead of the simulator, for programs that link tools/cudasim/loader. They
// may contain objects of nvcc's, whose kernels are announced to the runtime that is connected.
#ifndef CUDASIM_LOADER_NVIDIA_H_
#define CUDASIM_LOADER_NVIDIA_H_

#include <string>

namespace cudasim {

// Make CUDA's functions those of NVIDIA's runtime (libcudart.so.13), and cuBLASLt's those of
// NVIDIA's cuBLASLt (libcublasLt.so.13), found as the dynamic linker finds libraries. Return an
// empty text, or why that failed; after a failure they may be called again. Once the simulator is
// connected they do nothing. NCCL's functions stay as they are. Not thread-safe.
std::string ConnectNvidiaRuntime();
std::string ConnectNvidiaCublasLt();

}  // namespace cudasim

#endif  // CUDASIM_LOADER_NVIDIA_H_
