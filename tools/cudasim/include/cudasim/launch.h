// The interface between the simulator's host side and the side that runs kernels.
#ifndef CUDASIM_LAUNCH_H_
#define CUDASIM_LAUNCH_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cudasim/bug.h"
#include "cudasim/types.h"

namespace cudasim {

// A kernel's pointer argument; is_const if the parameter is a const T*.
struct PointerArgument {
  const void* address;
  bool is_const;
};

// A kernel with its arguments, captured by value. It can run many times (graph replay).
struct Launch {
  const char* name = nullptr;      // null: the symbol at `function`, see KernelName()
  const void* function = nullptr;  // the kernel's address
  dim3 grid, block;
  size_t shared_bytes = 0;  // dynamic shared memory
  bool cooperative = false;
  std::vector<PointerArgument> pointers;
  std::function<void()> body;  // runs the thread given by threadIdx and blockIdx
  // Or, for a kernel that nvcc compiled: runs the grid on a device.
  std::function<cudaError_t(int device)> run_grid;
};

// The name of a launch's kernel: its symbol, without "void" and the list of parameters.
std::string KernelName(const Launch& launch);

// Checks a launch's configuration (cudaErrorInvalidConfiguration and similar errors), then enqueues
// it, or adds it to a graph if the stream is captured. Implemented by the host side.
cudaError_t Enqueue(cudaStream_t stream, Launch launch);

// Runs all blocks of a grid and returns when they are done. Called on the threads of streams,
// possibly at the same time. Returns cudaErrorLaunchFailure after a reported bug under
// CUDASIM_ON_BUG=error.
cudaError_t RunGrid(int device, const Launch& launch);

// Prints the bug; on a thread that runs a kernel also kernel, block, thread and, if known, the
// source line. CUDASIM_ON_BUG=abort (the default): aborts the process. =error: keeps the text for
// TakeReports(), and inside a kernel abandons the grid and does not return.
void Report(Bug bug, const std::string& text);

// "kernel K, block (1,0,0) of (4,1,1), thread (17,0,0) of (128,1,1)", or empty outside of a kernel.
// Safe in a signal handler if the name is known or the symbols have already been read.
std::string CurrentThread();

// The texts of all reports since the last call. For tests.
std::vector<std::string> TakeReports();

// A kernel as it is passed to cudaLaunchKernelEx.
template <typename... Parameters, typename... Arguments>
Launch MakeLaunch(const cudaLaunchConfig_t& config, void (*kernel)(Parameters...),
                  Arguments&&... arguments);

}  // namespace cudasim

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  return cudasim::Enqueue(
      config->stream, cudasim::MakeLaunch(*config, kernel, std::forward<Arguments>(arguments)...));
}

#include "cudasim/launch_impl.h"

#endif  // CUDASIM_LAUNCH_H_
