// Checked calls of the CUDA runtime. Usable from .cc and .cu files.
#pragma once

#include <cuda_runtime.h>

#include "core/error.h"

namespace lockstep::cuda {

// A CUDA call, or work submitted earlier, failed. what() gives the call, CUDA's error and, where
// known, the fix.
class CudaError : public Error {
 public:
  CudaError(const std::string& what, cudaError_t code) : Error(what), code_(code) {}
  cudaError_t code() const { return code_; }

 private:
  cudaError_t code_;
};

// Throws CudaError: "<doing>: <CUDA's text> (<CUDA's name>)", with advice. Clears CUDA's last
// error, so that the next call is not blamed for this one.
[[noreturn]] void ThrowCudaError(cudaError_t code, const std::string& doing);

// Logs instead of throwing, for destructors. A repeated error is logged once.
void WarnCudaError(cudaError_t code, const char* doing) noexcept;

}  // namespace lockstep::cuda

// LS_CUDA(cudaStreamSynchronize(stream));
#define LS_CUDA(call)                                                                            \
  do {                                                                                           \
    const cudaError_t ls_cuda_code = (call);                                                     \
    if (ls_cuda_code != cudaSuccess) [[unlikely]]                                                \
      ::lockstep::cuda::ThrowCudaError(ls_cuda_code,                                             \
                                       ::lockstep::StrCat(__FILE__, ":", __LINE__, ": " #call)); \
  } while (0)

// The same where nothing may be thrown.
#define LS_CUDA_WARN(call)                                                                 \
  do {                                                                                     \
    const cudaError_t ls_cuda_code = (call);                                               \
    if (ls_cuda_code != cudaSuccess) ::lockstep::cuda::WarnCudaError(ls_cuda_code, #call); \
  } while (0)
