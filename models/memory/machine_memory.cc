#include "models/memory/machine_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "core/cuda/device_info.h"
#include "core/io/file.h"
#include "models/memory/memory_advice.h"
#include "models/report/format.h"

namespace lockstep::models {
namespace {

// The number behind "name:" in a file of /proc, in bytes; 0 if there is none.
int64_t ProcBytes(const char* file, const std::string& name) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(name + ":")) continue;
    int64_t kib = 0;
    std::istringstream(line.substr(name.size() + 1)) >> kib;
    return kib * 1024;
  }
  return 0;
}

int64_t ReadNumber(const std::string& file, int64_t otherwise) {
  std::ifstream in(file);
  int64_t n = 0;
  return in >> n ? n : otherwise;  // the file may say "max"
}

// The number behind "name " in memory.stat of a cgroup; 0 if there is none.
int64_t CgroupStat(const std::string& file, const std::string& name) {
  std::ifstream in(file);
  std::string key;
  for (int64_t value = 0; in >> key >> value;) {
    if (key == name) return value;
  }
  return 0;
}

// A container or a Slurm job may have less than the machine.
void LimitByCgroup(DeviceMemory* memory) {
  std::ifstream in("/proc/self/cgroup");
  std::string own;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("0::")) own = line.substr(3);  // version 2
  }
  for (std::string path = own; !path.empty(); path = path == "/" ? "" : ParentPath(path)) {
    const std::string folder = "/sys/fs/cgroup" + (path == "/" ? "" : path);
    const int64_t limit = ReadNumber(folder + "/memory.max", -1);
    if (limit < 0 || limit >= memory->total) continue;
    memory->total = limit;
    // The page cache counts as used, but the system evicts it first.
    const int64_t cached = CgroupStat(folder + "/memory.stat", "inactive_file");
    const int64_t used = ReadNumber(folder + "/memory.current", 0) - cached;
    memory->free = std::min(memory->free, std::clamp<int64_t>(limit - used, 0, limit));
  }
}

std::string Bytes(int64_t n) { return FormatBytes(static_cast<double>(n)); }

}  // namespace

DeviceMemory MemoryOf(Device device) {
  if (device.is_cuda()) {
    const cuda::DeviceInfo info = cuda::GetDeviceInfo(device);
    return {info.total_bytes, info.free_bytes};
  }
  DeviceMemory memory{ProcBytes("/proc/meminfo", "MemTotal"),
                      ProcBytes("/proc/meminfo", "MemAvailable")};
  LimitByCgroup(&memory);
  return memory;
}

std::string Describe(const DeviceMemory& memory) {
  return fmt::format("  {:<14}{:>14}, of which {} are free", "there are", Bytes(memory.total),
                     Bytes(memory.free));
}

int64_t SwapBytes() { return ProcBytes("/proc/meminfo", "SwapTotal"); }

int64_t ResidentBytes() { return ProcBytes("/proc/self/status", "VmRSS"); }
int64_t PeakResidentBytes() { return ProcBytes("/proc/self/status", "VmHWM"); }

MemoryFit::Kind FitOf(const MemoryPlan& plan, Device device, const DeviceMemory& memory,
                      int64_t processes) {
  using enum MemoryFit::Kind;
  if (memory.total <= 0) return kFits;
  const bool cpu = device.is_cpu();
  const int64_t all = plan.needed(device, processes);
  const int64_t more = cpu ? all - processes * plan.program : all;  // the program is already loaded
  return all > memory.total ? kTooLarge : more > memory.free ? kTight : kFits;
}

MemoryFit::Kind HostFitOf(const MemoryPlan& plan, Device device, const DeviceMemory& host,
                          int64_t processes) {
  using enum MemoryFit::Kind;
  if (device.is_cpu() || host.total <= 0) return kFits;
  if (processes * plan.host > host.total) return kTooLarge;
  return plan.needed_of_host(processes) > host.free ? kTight : kFits;
}

MemoryFit JudgeHost(const MemoryPlan& plan, Device device, const DeviceMemory& host,
                    int64_t processes, ByteFormat format) {
  using Kind = MemoryFit::Kind;
  const auto bytes = [format](int64_t n) { return format(static_cast<double>(n)); };
  const Kind kind = HostFitOf(plan, device, host, processes);
  if (kind == Kind::kFits) return {};
  std::string keeps, remedies;
  if (plan.host > 0) {
    keeps = fmt::format("{} page-locked for train.offload", bytes(processes * plan.host));
    remedies = "offload less (train.offload)";
  }
  if (plan.snapshot > 0) {
    keeps += fmt::format("{}{} to write checkpoints from", keeps.empty() ? "" : " and ",
                         bytes((plan.all_copy ? processes : 1) * plan.snapshot));
    remedies += remedies.empty() ? "" : ", or ";
    remedies += plan.collects ? "let each rank write its part of a checkpoint while training waits "
                                "(checkpoint.sharded=true checkpoint.async=false)"
                              : "write checkpoints while training waits (checkpoint.async=false)";
  }
  if (plan.state_copies > 0) {
    keeps += fmt::format("{}{} to go on from without other ranks", keeps.empty() ? "" : " and ",
                         bytes(processes * plan.state_copies));
    remedies += StrCat(remedies.empty() ? "" : ", or ", "leave dist.elastic out");
  }
  return {kind, fmt::format("in addition to their GPUs, {} {} {} of their machine's memory, {}, "
                            "and it has {} free of {}: {}, or use GPUs of more machines",
                            processes, processes == 1 ? "process takes" : "processes take",
                            bytes(plan.needed_of_host(processes)), keeps, bytes(host.free),
                            bytes(host.total), remedies)};
}

MemoryFit JudgeMemory(const MemoryPlan& plan, const RunSetup& setup, const DeviceMemory& memory,
                      int64_t processes, const DeviceMemory& host) {
  using Kind = MemoryFit::Kind;
  const Kind kind = FitOf(plan, setup.device, memory, processes);
  if (kind == Kind::kFits || HostFitOf(plan, setup.device, host, processes) > kind) {
    return JudgeHost(plan, setup.device, host, processes);
  }
  const bool cpu = setup.device.is_cpu();
  const std::string needs =
      cpu && processes > 1 ? fmt::format("{} processes of this run need {} together", processes,
                                         Bytes(plan.needed(setup.device, processes)))
                           : fmt::format("this run needs {}", Bytes(plan.needed(setup.device)));
  const std::string has =
      kind == Kind::kTooLarge
          ? fmt::format("has {}", Bytes(memory.total))
          : fmt::format("has {} free of {}", Bytes(memory.free), Bytes(memory.total));
  // What is advised leaves some room.
  const auto part = [](int64_t n) {
    return static_cast<int64_t>((1 - kPlanTolerance) * static_cast<double>(n));
  };
  const DeviceMemory room{part(memory.total), part(memory.free)};
  const auto fits_in = [&](const DeviceMemory& there) {
    return [&, there](const MemoryPlan& tried) {
      const Kind fit = FitOf(tried, setup.device, there, processes);
      if (HostFitOf(tried, setup.device, host, processes) == Kind::kTooLarge) return false;
      return fit == Kind::kFits || (fit == Kind::kTight && kind == Kind::kTooLarge);
    };
  };
  const std::string advice =
      MemoryAdvice(setup, {{fits_in(room)}, {fits_in(memory), StrCat("but ", kFitsClosely)}});
  const std::string others =
      kind == Kind::kTight ? " Or end other programs that use the memory." : "";
  return {kind,
          fmt::format("{}, and {} {}. {}.{} The plan: {}{}", needs,
                      cpu ? "this machine" : ToString(setup.device), has, advice, others,
                      Summary(plan), cpu && plan.program > 0 ? "; " + ProcessSummary(plan) : "")};
}

}  // namespace lockstep::models
