// What the host side of the simulator and the side that runs kernels know of each other.
#ifndef CUDASIM_LAUNCH_H_
#define CUDASIM_LAUNCH_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cudasim/types.h"

namespace cudasim {

// A kernel's argument that is a pointer; is_const where the kernel's parameter is a const T*.
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
  std::function<void()> body;  // runs the thread that threadIdx and blockIdx name
};

// The name of a launch's kernel: its symbol, without "void" and the list of parameters.
std::string KernelName(const Launch& launch);

// Queues a launch: checks its configuration and returns cudaErrorInvalidConfiguration and the like,
// or adds it to a graph that captures the stream. Implemented by the host side.
cudaError_t Enqueue(cudaStream_t stream, Launch launch);

// Runs all blocks of a grid and returns when they are done. Called on a stream's thread, from
// several at once. Returns cudaErrorLaunchFailure after a reported bug under CUDASIM_ON_BUG=error.
cudaError_t RunGrid(int device, const Launch& launch);

// A bug in the code that runs on the simulator.
enum class Bug {
  kBarrierDivergence,
  kMissingLanes,
  kOutOfBounds,
  kRace,
  kMissingWait,
  kMisaligned,
  kUninitialised,
  kHostAccess,
  kAssert,
  kTrap,
  kLeak,
  kOther,
};
const char* BugName(Bug bug);  // "barrier divergence"

// Prints the bug; on a thread that runs a kernel also kernel, block, thread and the source line
// where that is known. CUDASIM_ON_BUG=abort (the default): aborts the process. =error: keeps the
// text for TakeReports(), and inside a kernel gives up the grid, from where it does not return.
void Report(Bug bug, const std::string& text);

// "kernel K, block (1,0,0) of (4,1,1), thread (17,0,0) of (128,1,1)", or empty outside of a kernel.
// Safe in a signal handler as long as the name is known or the symbols have been read before.
std::string CurrentThread();

// The texts of all reports since the last call. For tests.
std::vector<std::string> TakeReports();

// A kernel as cudaLaunchKernelEx gets it.
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
