#include "core/cuda/device.h"

#include <charconv>
#include <cstdlib>
#include <mutex>

#include "core/cuda/backend.h"
#include "core/cuda/error.h"
#include "core/cuda/simulated_gpu.h"
#include "core/io/file.h"
#include "tools/cudasim/loader/loader.h"

namespace lockstep::cuda {
namespace {

// Devices have their names from the start.
[[maybe_unused]] const bool named = Simulated();

// Empty, or why NVIDIA's functions could not be loaded.
std::string Connect(std::string (*nvidia)()) {
  if (Simulated()) return "";
  static std::mutex connecting;
  const std::lock_guard lock(connecting);
  return nvidia();
}

[[noreturn]] void ThrowOtherBackend(const std::string& text) {
  if (Simulated() && kProgramsContainKernels) {
    throw InputError(StrCat("device=", text,
                            ": LOCKSTEP_SIMULATED_GPU is set. Unset it for a real GPU, or use "
                            "--device=sim, which is slow, or --device=cpu"));
  }
  if (Simulated()) {
    throw InputError(StrCat("device=", text,
                            ": this build simulates its GPUs. Build with --config=cuda for a real "
                            "one (tools/setup makes that the default where it finds one), or use "
                            "--device=sim, which is slow, or --device=cpu"));
  }
  throw InputError(StrCat("device=", text,
                          ": this build is for real GPUs. Give LOCKSTEP_SIMULATED_GPU=/path/to/"
                          "libcudart.so.13 of //tools/cudasim/ptx to simulate one, or use "
                          "--device=cuda"));
}

// Without one, CUDA says that it is too old.
bool HasDriver() {
  int version = 0;
  if (cudaDriverGetVersion(&version) == cudaSuccess && version != 0) return true;
  cudaGetLastError();
  return PathExists("/dev/nvidiactl") || PathExists("/dev/nvidia0");
}

}  // namespace

bool Simulated() {
  static const bool simulated = [] {
    const char* const library = std::getenv("LOCKSTEP_SIMULATED_GPU");
    const bool simulates = !kProgramsContainKernels || cudasim::Connected() ||
                           (library != nullptr && *library != '\0');
    if (simulates) NameCudaDevices("sim");
    return simulates;
  }();
  return simulated;
}

void RequireCublasLt() {
  if (const std::string why_not = Connect(cudasim::ConnectNvidiaCublasLt); !why_not.empty()) {
    throw Error(StrCat("cuBLASLt cannot be loaded (", why_not,
                       "); install NVIDIA's package libcublas, or add its folder to "
                       "LD_LIBRARY_PATH"));
  }
}

int DeviceCount() {
  if (Simulated() && !cudasim::Connected()) return 0;
  if (const std::string why_not = Connect(cudasim::ConnectNvidiaRuntime); !why_not.empty()) {
    if (!HasDriver()) return 0;
    throw Error(StrCat("CUDA does not start: its runtime cannot be loaded (", why_not,
                       "); install NVIDIA's package cuda-cudart, or add its folder to "
                       "LD_LIBRARY_PATH"));
  }
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess) return count;
  cudaGetLastError();
  if (error == cudaErrorNoDevice || (error == cudaErrorInsufficientDriver && !HasDriver()))
    return 0;
  ThrowCudaError(error, "CUDA does not start");
}

Device ParseDevice(const std::string& text) {
  if (text == "cpu") return kCpu;
  if (text == "auto") {
    return Simulated() || DeviceCount() == 0 ? kCpu : ParseDevice("cuda:0");
  }
  const size_t colon = text.find(':');
  const std::string name = text.substr(0, colon);
  int index = 0;
  bool valid = name == "cuda" || name == "sim";
  if (colon != std::string::npos) {
    const char *begin = text.data() + colon + 1, *end = text.data() + text.size();
    const auto [stop, code] = std::from_chars(begin, end, index);
    valid = valid && begin != end && code == std::errc() && stop == end && index >= 0;
  }
  if (!valid) {
    throw InputError(
        StrCat("device=", text, " is not a device; use auto, cpu, cuda, cuda:0, sim or sim:0"));
  }
  if ((name == "sim") != Simulated()) ThrowOtherBackend(text);
  LoadSimulatedGpu();
  const int count = DeviceCount();
  if (count == 0) {
    throw InputError(StrCat("device=", text,
                            ": CUDA finds no GPU here; does nvidia-smi list one, and does "
                            "CUDA_VISIBLE_DEVICES allow it? Use --device=cpu to run without one"));
  }
  if (index >= count) {
    throw InputError(StrCat("device=", text, ": there are ", count, " devices, ", name, ":0 to ",
                            name, ":", count - 1,
                            Simulated() ? "; CUDASIM_DEVICES=n simulates n of them" : ""));
  }
  RequireCublasLt();
  return {DeviceType::kCuda, index};
}

void SetDevice(Device device) {
  LS_INVARIANT(device.is_cuda(), device);
  [[maybe_unused]] static const int runtime_is_there = DeviceCount();
  LS_CUDA(cudaSetDevice(device.index));
}

}  // namespace lockstep::cuda
