#include "core/cuda/backend.h"

#include "core/cuda/device.h"
#include "core/cuda/error.h"  // CUDASIM

// What differs between builds whose backend is settled and those of --config=either
// (backend_either.cc).
namespace lockstep::cuda {

#ifdef CUDASIM
const bool kSimulated = true;
#else
const bool kSimulated = false;
#endif

const bool kLoadsEitherRuntime = false;

// NVIDIA's libraries are linked, or the simulator.
std::string ConnectNvidiaRuntime() { return ""; }
std::string ConnectNvidiaCublasLt() { return ""; }

}  // namespace lockstep::cuda
