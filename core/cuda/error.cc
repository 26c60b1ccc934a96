#include "core/cuda/error.h"

#include <atomic>
#include <cstdio>

namespace lockstep::cuda {
namespace {

// What to do about the error; empty if there is no advice.
const char* Advice(cudaError_t code) {
  switch (code) {
    case cudaErrorSystemNotReady:
      return "; the GPUs' fabric manager does not run, or not yet: see systemctl status "
             "nvidia-fabricmanager";
    case cudaErrorSystemDriverMismatch:
      return "; the driver's kernel module and its library are of different versions, as after an "
             "update: load the module again, or restart the machine";
    case cudaErrorStubLibrary:
      return "; the libcuda.so.1 that is found is the CUDA toolkit's stub, for linking only: take "
             "its folder out of LD_LIBRARY_PATH, install NVIDIA's driver, or start the container "
             "with its GPUs (docker run --gpus=all); or use --device=cpu";
    case cudaErrorCompatNotSupportedOnDevice:
      return "; CUDA's compatibility libraries, as /usr/local/cuda/compat in a container, work "
             "with "
             "data-centre GPUs only: take them out of LD_LIBRARY_PATH, or update the driver";
    case cudaErrorDevicesUnavailable:
      return "; another process may have the GPU to itself: see nvidia-smi, and allow several with "
             "nvidia-smi --compute-mode=0";
    case cudaErrorInitializationError:
    case cudaErrorUnknown:
      return "; where nvidia-smi works, as after the machine slept, load the driver's module "
             "again: "
             "modprobe -r nvidia_uvm && modprobe nvidia_uvm";
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
      return "; check with nvidia-smi that there is an NVIDIA GPU with a driver for this CUDA "
             "version, or use --device=cpu";
    case cudaErrorNoKernelImageForDevice:
      return "; this build has no code for this GPU: build with "
             "--//tools/bazel:cuda_archs=sm_NN, NN being its compute capability";
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorAssert:
      return "; a kernel submitted earlier is at fault: with LOCKSTEP_CUDA_SYNC=1 the error names "
             "it, and compute-sanitizer finds the line";
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
  // Static objects may be destroyed after the driver has shut down and freed everything.
  if (code == cudaErrorCudartUnloading) return;
  // After a device has failed, every call fails: warn once.
  static std::atomic<cudaError_t> said = cudaSuccess;
  if (said.exchange(code) == code) return;
  std::fprintf(stderr, "warning: %s: %s\n", doing, cudaGetErrorString(code));
}

}  // namespace lockstep::cuda
