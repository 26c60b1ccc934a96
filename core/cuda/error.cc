#include "core/cuda/error.h"

#include <atomic>
#include <cstdio>

namespace lockstep::cuda {
namespace {

// What to do about it, or nothing.
const char* Advice(cudaError_t code) {
  switch (code) {
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
      return "; is there an NVIDIA GPU with a driver for this CUDA version? nvidia-smi tells. "
             "--device=cpu needs neither";
    case cudaErrorNoKernelImageForDevice:
      return "; this build has no code for this GPU: build with "
             "--//tools/bazel:cuda_archs=sm_NN, NN being its compute capability";
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorAssert:
      return "; a kernel submitted earlier is at fault: LOCKSTEP_CUDA_SYNC=1 makes the error name "
             "it, compute-sanitizer finds the line";
    default:
      return "";
  }
}

}  // namespace

void ThrowCudaError(cudaError_t code, const std::string& doing) {
  cudaGetLastError();
  throw CudaError(StrCat(doing, ": ", cudaGetErrorString(code), " (", cudaGetErrorName(code), ")",
                         Advice(code)),
                  code);
}

void WarnCudaError(cudaError_t code, const char* doing) noexcept {
  cudaGetLastError();
  // Static objects are destroyed after the driver has gone: then everything is freed already.
  if (code == cudaErrorCudartUnloading) return;
  // A device that has failed fails every call that follows: said once.
  static std::atomic<cudaError_t> said = cudaSuccess;
  if (said.exchange(code) == code) return;
  std::fprintf(stderr, "warning: %s: %s\n", doing, cudaGetErrorString(code));
}

}  // namespace lockstep::cuda
