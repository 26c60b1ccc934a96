// The only way to launch a kernel: checked, named, and visible to profilers. For .cu files.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <utility>

#include "core/cuda/error.h"
#include "core/stream.h"
#include "core/tensor.h"

namespace lockstep::cuda {

// A launch's name in errors and profiles, such as "softmax_forward", and optionally the tensors
// whose dtypes and shapes errors report. Costs nothing until something fails. Lives only during the
// call.
class LaunchName {
 public:
  static constexpr int kMaxTensors = 6;

  template <class... Tensors>
  LaunchName(const char* name, const Tensors&... tensors) : name_(name), tensors_{&tensors...} {
    static_assert(sizeof...(Tensors) <= kMaxTensors);
  }
  const char* name() const { return name_; }
  // "softmax_forward(f32[2, 3] on cuda:0, ...)"
  std::string Describe() const;

 private:
  const char* name_;
  std::array<const Tensor*, kMaxTensors> tensors_{};
};

namespace internal {

// A range in the profiler's timeline.
class NvtxRange {
 public:
  explicit NvtxRange(const char* name);
  ~NvtxRange();
  NvtxRange(const NvtxRange&) = delete;
  NvtxRange& operator=(const NvtxRange&) = delete;
};

// Before a launch: makes the stream's device current, and if `kernel` needs more than the 48 KiB of
// dynamic shared memory that every kernel may have, raises its limit.
void PrepareLaunch(const LaunchName& name, const void* kernel, size_t shared_bytes, Stream stream);
// After a launch: throws if it failed; with LOCKSTEP_CUDA_SYNC=1 first waits for the kernel.
void CheckLaunch(cudaError_t code, const LaunchName& name, dim3 grid, dim3 block,
                 size_t shared_bytes, Stream stream);

}  // namespace internal

// Runs kernel(args...) on grid x block threads with `shared_bytes` of dynamic shared memory, after
// the work already submitted to `stream`. With an empty grid, does nothing. Arguments are converted
// to the kernel's parameter types and copied. Throws CudaError that names the launch, its grid and
// its shapes.
//   Launch({"scale", x, y}, ScaleKernel<T>, blocks, 256, 0, stream, x_data, alpha, y_data, n);
template <class... Params, class... Args>
void Launch(const LaunchName& name, void (*kernel)(Params...), dim3 grid, dim3 block,
            size_t shared_bytes, Stream stream, Args&&... args) {
  static_assert(sizeof...(Params) == sizeof...(Args),
                "pass one argument for each parameter of the kernel");
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  internal::PrepareLaunch(name, reinterpret_cast<const void*>(kernel), shared_bytes, stream);
  const internal::NvtxRange range(name.name());
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream.handle.get());
  internal::CheckLaunch(cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...), name,
                        grid, block, shared_bytes, stream);
}

}  // namespace lockstep::cuda
