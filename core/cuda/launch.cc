#include "core/cuda/launch.h"

#include <nvtx3/nvToolsExt.h>

#include <cstdlib>

#include "core/cuda/handles.h"

namespace lockstep::cuda {
namespace {

std::string ToString(dim3 d) { return StrCat("(", d.x, ", ", d.y, ", ", d.z, ")"); }

}  // namespace

bool SynchronousLaunches() {
  static const bool value = [] {
    const char* text = std::getenv("LOCKSTEP_CUDA_SYNC");
    return text != nullptr && *text != '\0' && std::string(text) != "0";
  }();
  return value;
}

std::string LaunchName::Describe() const {
  std::string text = name_;
  const char* separator = "(";
  for (const Tensor* x : tensors_) {
    if (x == nullptr) break;
    text += separator + x->Describe();
    separator = ", ";
  }
  return *separator == '(' ? text : text + ")";
}

namespace internal {

NvtxRange::NvtxRange(const char* name) { nvtxRangePushA(name); }
NvtxRange::~NvtxRange() { nvtxRangePop(); }

void PrepareLaunch(const LaunchName& name, const void* kernel, size_t shared_bytes, Stream stream) {
  constexpr size_t kAlwaysAllowed = 48 << 10;
  LS_INVARIANT(stream.device.is_cuda(), name.name(), " on ", stream.device);
  LS_CUDA(cudaSetDevice(stream.device.index));
  if (shared_bytes <= kAlwaysAllowed) return;
  const cudaError_t code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                static_cast<int>(shared_bytes));
  if (code != cudaSuccess) {
    ThrowCudaError(code, StrCat(name.Describe(), " requests ", shared_bytes,
                                " bytes of shared memory on ", stream.device));
  }
}

void CheckLaunch(cudaError_t code, const LaunchName& name, dim3 grid, dim3 block,
                 size_t shared_bytes, Stream stream) {
  const char* what = "launch";
  if (code == cudaSuccess && SynchronousLaunches()) [[unlikely]] {
    code = cudaStreamSynchronize(static_cast<cudaStream_t>(stream.handle.get()));
    what = "kernel";
  }
  if (code == cudaSuccess) [[likely]]
    return;
  ThrowCudaError(code, StrCat(what, " of ", name.Describe(), " on ", stream.device, " with grid ",
                              ToString(grid), ", block ", ToString(block), ", ", shared_bytes,
                              " bytes of dynamic shared memory"));
}

}  // namespace internal
}  // namespace lockstep::cuda
