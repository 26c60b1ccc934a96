// The GPUs of programs that contain nvcc's objects and choose the runtime when they run
// (--config=either): simulated ones if the simulator is linked, or if LOCKSTEP_SIMULATED_GPU names
// it.
#include <cstdlib>
#include <mutex>

#include "core/cuda/backend.h"
#include "core/cuda/device.h"
#include "tools/cudasim/loader/loader.h"
#include "tools/cudasim/loader/nvidia.h"

namespace lockstep::cuda {
namespace {

std::mutex connecting;

}  // namespace

const bool kSimulated = [] {
  const char* const path = std::getenv("LOCKSTEP_SIMULATED_GPU");
  const bool simulated = cudasim::Connected() || (path != nullptr && *path != '\0');
  if (simulated) NameCudaDevices("sim");
  return simulated;
}();

const bool kLoadsEitherRuntime = true;

std::string ConnectNvidiaRuntime() {
  if (kSimulated) return "";
  const std::lock_guard lock(connecting);
  return cudasim::ConnectNvidiaRuntime();
}
std::string ConnectNvidiaCublasLt() {
  if (kSimulated) return "";
  const std::lock_guard lock(connecting);
  return cudasim::ConnectNvidiaCublasLt();
}

}  // namespace lockstep::cuda
