// What the host side of the simulator knows of a kernel that is launched.
#ifndef CUDASIM_LAUNCH_H_
#define CUDASIM_LAUNCH_H_

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "cudasim/types.h"

namespace cudasim {

// A pointer among a kernel's arguments.
struct PointerArgument {
  const void* address;
  bool written;  // by the kernel, rather than only read
};

// A kernel with its arguments. It can run many times (graph replay).
struct Launch {
  std::string name;                // demangled, without its parameters
  const void* function = nullptr;  // what the host calls it by
  dim3 grid, block;
  size_t shared_bytes = 0;  // dynamic shared memory
  bool cooperative = false;
  std::vector<PointerArgument> pointers;
  // Runs all blocks on a device, and returns when they are done. Called on the threads of streams,
  // possibly at the same time. Returns cudaErrorLaunchFailure after a reported bug under
  // CUDASIM_ON_BUG=error.
  std::function<cudaError_t(int device)> run;
};

// Checks a launch's configuration (cudaErrorInvalidConfiguration and similar errors), then enqueues
// it, or adds it to a graph if the stream is captured.
cudaError_t Enqueue(cudaStream_t stream, Launch launch);

}  // namespace cudasim

#endif  // CUDASIM_LAUNCH_H_
