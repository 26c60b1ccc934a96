#include "dist/preflight/gpu_facts.h"

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <array>
#include <sstream>

#include "core/cuda/device.h"
#include "core/cuda/device_info.h"
#include "core/cuda/error.h"
#include "core/io/file.h"
#include "core/system/shared_library.h"
#include "dist/groups/nccl_api.h"

namespace lockstep::dist {
namespace {

std::string BusOf(int device) {
  std::array<char, 32> bus = {};
  LS_CUDA(cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), device));
  return bus.data();
}

// Libraries write 2.27.3 as 22703, for example: `unit` is the first number's.
std::string Dotted(int64_t version, int64_t unit) {
  return StrCat(version / unit, ".", version % unit / 100, ".", version % 100);
}

// "580.65.06", from "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  ...".
std::string VersionOfModule() {
  constexpr char kPath[] = "/proc/driver/nvidia/version";
  if (!PathExists(kPath)) return "";
  std::istringstream words(ReadFile(kPath));
  for (std::string word; words >> word;) {
    if (word.find_first_not_of("0123456789.") == std::string::npos) return word;
  }
  return "";
}

// NVML's functions, which come with the driver, by its documentation: no header of it is needed.
struct Nvml {
  int (*Init)();
  int (*HandleByBus)(const char* bus, void** device);
  int (*Clock)(void* device, int kind, unsigned* mhz);
  int (*MostClock)(void* device, int kind, unsigned* mhz);
  int (*Reasons)(void* device, unsigned long long* reasons);
};
constexpr int kMultiprocessors = 1;  // NVML_CLOCK_SM

// nvmlClocksThrottleReason..., without those of an idle GPU, of its user's settings, and of its
// usual limit of power.
struct Reason {
  unsigned long long bit;
  const char* name;
};
constexpr Reason kReasons[] = {{0x8, "hardware slowdown"},
                               {0x20, "heat"},
                               {0x40, "heat, by hardware"},
                               {0x80, "the power supply's brake"}};

}  // namespace

GpuFacts FactsOfGpu(Device device) {
  GpuFacts facts{cuda::GetDeviceInfo(device).name, BusOf(device.index)};
  for (int other = 0; other < cuda::DeviceCount(); ++other) {
    if (other == device.index) continue;
    int reaches = 0;
    LS_CUDA(cudaDeviceCanAccessPeer(&reaches, device.index, other));
    facts.peers[BusOf(other)] = reaches != 0;
  }
  return facts;
}

std::map<std::string, std::string> GpuVersions() {
  int driver = 0, runtime = 0;
  LS_CUDA(cudaDriverGetVersion(&driver));
  LS_CUDA(cudaRuntimeGetVersion(&runtime));
  const auto cuda = [](int version) { return StrCat(version / 1000, ".", version % 1000 / 10); };
  std::map<std::string, std::string> versions = {
      {"CUDA driver", cuda(driver)},
      {"CUDA runtime", cuda(runtime)},
      {"cuBLASLt", Dotted(static_cast<int64_t>(cublasLtGetVersion()), 10000)}};
  try {
    int nccl = 0;
    Nccl().GetVersion(&nccl);
    // Before 2.9 it wrote 2.8.3 as 2803; Lockstep needs 2.14.
    versions["NCCL"] = Dotted(nccl, 10000);
  } catch (const Error&) {  // the report says on which ranks it is missing
  }
  if (cuda::Simulated()) return versions;
  if (const std::string module = VersionOfModule(); !module.empty()) versions["driver"] = module;
  try {
    size_t (*get)() = nullptr;
    const SharedLibrary cudnn({"cuDNN", {"libcudnn.so.9"}, "libcudnn9"});
    cudnn.Find("cudnnGetVersion", &get);
    versions["cuDNN"] = Dotted(static_cast<int64_t>(get()), 10000);
  } catch (const Error&) {  // it is optional
  }
  return versions;
}

std::optional<GpuClocks> ClocksOfGpu(const std::string& bus) {
  Nvml nvml;
  try {
    const SharedLibrary library({"NVML", {"libnvidia-ml.so.1"}, "NVIDIA's driver"});
    library.Find("nvmlInit_v2", &nvml.Init);
    library.Find("nvmlDeviceGetHandleByPciBusId_v2", &nvml.HandleByBus);
    library.Find("nvmlDeviceGetClockInfo", &nvml.Clock);
    library.Find("nvmlDeviceGetMaxClockInfo", &nvml.MostClock);
    library.Find("nvmlDeviceGetCurrentClocksThrottleReasons", &nvml.Reasons);
  } catch (const Error&) {
    return std::nullopt;
  }
  void* device = nullptr;
  unsigned now = 0, most = 0;
  unsigned long long reasons = 0;
  if (nvml.Init() != 0 || nvml.HandleByBus(bus.c_str(), &device) != 0 ||
      nvml.Clock(device, kMultiprocessors, &now) != 0 ||
      nvml.MostClock(device, kMultiprocessors, &most) != 0 || nvml.Reasons(device, &reasons) != 0) {
    return std::nullopt;
  }
  GpuClocks clocks{static_cast<int>(now), static_cast<int>(most), {}};
  for (const Reason& reason : kReasons) {
    if ((reasons & reason.bit) != 0) clocks.slowed_by.emplace_back(reason.name);
  }
  return clocks;
}

}  // namespace lockstep::dist
