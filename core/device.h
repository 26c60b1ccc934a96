// Where a tensor's bytes live.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>

namespace lockstep {

// kCuda is a real GPU under --config=cuda and the simulated one otherwise: one backend per build.
// kMeta has shapes but no bytes: ops on it only infer shapes.
enum class DeviceType : uint8_t { kCpu, kCuda, kMeta };
constexpr int kNumDeviceTypes = 3;

struct Device {
  DeviceType type = DeviceType::kCpu;
  int index = 0;

  bool operator==(const Device&) const = default;
  bool is_cpu() const { return type == DeviceType::kCpu; }
  bool is_cuda() const { return type == DeviceType::kCuda; }
  bool is_meta() const { return type == DeviceType::kMeta; }
};

inline constexpr Device kCpu{DeviceType::kCpu, 0};
inline constexpr Device kMeta{DeviceType::kMeta, 0};

// As error messages name it: "CPU", "CUDA", "meta".
std::string_view Name(DeviceType type);
// "cpu", "cuda:0", "meta"; "sim:0" where this build simulates its GPUs.
std::string ToString(Device device);
// What ToString calls CUDA devices: "cuda" unless the registered backend says otherwise. `name` is
// a literal.
void NameCudaDevices(const char* name);
std::ostream& operator<<(std::ostream& out, Device device);

}  // namespace lockstep
