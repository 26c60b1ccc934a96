#include "tools/doctor/checks.h"

#include <fmt/format.h>
#include <sys/vfs.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <thread>

#include "core/cuda/device.h"
#include "core/cuda/device_info.h"
#include "core/error.h"
#include "core/io/file.h"
#include "core/system/instruction_set.h"
#include "core/system/processors.h"
#include "dist/preflight/gpu_facts.h"
#include "kernels/cpu/gemm.h"
#include "models/memory/machine_memory.h"
#include "models/report/format.h"
#include "models/train/utilization.h"

namespace lockstep::tools {
namespace {

using enum Finding::Verdict;

// The first line of a file of the system; "" if there is none.
std::string LineOf(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

// "AMD EPYC 9R14", from /proc/cpuinfo.
std::string CpuName(const std::string& proc) {
  std::ifstream in(proc + "/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "an unknown CPU";
}

// Of the line "MemAvailable:   123 kB" and its like, in bytes; 0 if there is none.
double KilobytesOf(const std::string& path, const std::string& key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(key + ":"))
      return 1024 * std::strtod(line.c_str() + key.size() + 1, nullptr);
  }
  return 0;
}

int CountNodes(const std::string& sys) {
  const std::string folder = sys + "/devices/system/node";
  if (!PathExists(folder)) return 1;
  int nodes = 0;
  for (const std::string& name : ListDirectory(folder)) {
    const bool is_node = name.starts_with("node") && name.size() > 4;
    nodes += is_node && name.find_first_not_of("0123456789", 4) == std::string::npos ? 1 : 0;
  }
  return std::max(nodes, 1);
}

// By statfs(2)'s numbers.
std::string FileSystemName(uint64_t type) {
  static const std::map<uint64_t, std::string> kNames = {
      {0xEF53, "ext4"},        {0x58465342, "xfs"},    {0x9123683E, "btrfs"}, {0x01021994, "tmpfs"},
      {0x794C7630, "overlay"}, {0x6969, "nfs"},        {0xFF534D42, "cifs"},  {0xFE534D42, "smb2"},
      {0x01021997, "9p"},      {0x0BD00BD0, "lustre"}, {0x65735546, "fuse"},  {0x2FC12FC1, "zfs"},
      {0x47504653, "gpfs"},    {0x00C36400, "ceph"}};
  const auto name = kNames.find(type);
  return name == kNames.end() ? "a file system of another kind" : name->second;
}

// Seconds until a new file of 16 MiB in the folder is on the disk.
double SecondsToStore(const std::string& folder) {
  const std::string path = TemporaryName(JoinPath(folder, "doctor"));
  const std::string contents(16 << 20, 'x');
  const auto begin = std::chrono::steady_clock::now();
  WriteFileAtomically(path, contents);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  RemoveTree(path);
  return seconds;
}

Finding CheckGpu(int index) {
  const Device device = cuda::ParseDevice(StrCat("cuda:", index));
  const cuda::DeviceInfo info = cuda::GetDeviceInfo(device);
  const dist::GpuFacts facts = dist::FactsOfGpu(device);
  Finding finding{
      .subject = StrCat("GPU ", index),
      .fact = StrCat(info.name, ", ",
                     models::FormatDecimalBytes(static_cast<double>(info.total_bytes)))};
  const double taken = static_cast<double>(info.total_bytes - info.free_bytes);
  const auto unreached = std::ranges::count_if(facts.peers, [](auto& p) { return !p.second; });
  const auto clocks = dist::ClocksOfGpu(facts.bus);
  if (clocks && !clocks->slowed_by.empty()) {
    finding.verdict = kSlow;
    finding.advice =
        StrCat("its driver holds its clock at ", clocks->mhz, " of ", clocks->most_mhz,
               " MHz because of ", clocks->slowed_by[0], ": look at its cooling and power supply");
  } else if (taken > 0.1 * static_cast<double>(info.total_bytes)) {
    finding.verdict = kSlow;
    finding.advice = StrCat("other processes take ", models::FormatDecimalBytes(taken),
                            " of its memory: nvidia-smi lists them");
  } else if (unreached > 0) {
    finding.verdict = kSlow;
    finding.advice = StrCat("it does not reach the memory of ", unreached, " of the ",
                            facts.peers.size(), " other GPUs, so that sums go through the host's");
  }
  return finding;
}

}  // namespace

std::vector<Finding> CheckProcessors(const MachineFolders& folders) {
  std::vector<Finding> findings;
  const InstructionSet best = CpuInstructionSet(), used = UsedInstructionSet();
  Finding cpu{.subject = "CPU", .fact = StrCat(CpuName(folders.proc), ", ", ToString(used))};
  if (used != best) {
    cpu.verdict = kSlow;
    cpu.advice = StrCat("it has ", ToString(best), ": unset LOCKSTEP_MAX_CPU_ISA");
  }
  findings.push_back(cpu);
  const int usable = UsableProcessors();
  const auto online = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  std::ifstream list(folders.proc + "/self/cgroup");
  const std::string groups(std::istreambuf_iterator<char>(list), {});
  const double quota = CgroupQuota(groups, folders.sys + "/fs/cgroup");
  Finding processors{.subject = "processors", .fact = StrCat(usable)};
  if (quota > 0 && quota < online) {
    processors.fact += StrCat(" of ", online, ", by a quota of ", quota);
    if (quota != std::floor(quota)) {
      processors.verdict = kSlow;
      processors.advice =
          StrCat("threads wait for each other when a quota that is no whole number ",
                 "is used up: set it to ", std::ceil(quota),
                 ", or use --threads=", std::max(1.0, std::floor(quota)));
    }
  } else if (usable < online) {
    processors.fact += StrCat(" of ", online, ", by the affinity mask of this process");
  }
  const double load = std::strtod(LineOf(folders.proc + "/loadavg").c_str(), nullptr);
  if (load > 0.25 * online && processors.verdict == kGood) {
    processors.verdict = kSlow;
    processors.advice = fmt::format(
        "{:.1f} processes were running or waiting for one in the last minute: beside others, steps "
        "take longer, and unevenly",
        load);
  }
  findings.push_back(processors);
  const std::string governor =
      LineOf(folders.sys + "/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  const std::string driver =
      LineOf(folders.sys + "/devices/system/cpu/cpu0/cpufreq/scaling_driver");
  if (!governor.empty()) {
    Finding frequency{.subject = "frequency", .fact = StrCat(governor, " (", driver, ")")};
    // The two drivers that choose by themselves call their usual way so.
    const bool chooses = driver.starts_with("intel_pstate") || driver.starts_with("amd-pstate");
    if (governor == "powersave" && !chooses) {
      frequency.verdict = kSlow;
      frequency.advice = "the CPU stays at its lowest clock: cpupower frequency-set -g performance";
    }
    findings.push_back(frequency);
  }
  return findings;
}

std::vector<Finding> CheckMemory(const MachineFolders& folders) {
  std::vector<Finding> findings;
  const std::string info = folders.proc + "/meminfo";
  const double total = KilobytesOf(info, "MemTotal"), free = KilobytesOf(info, "MemAvailable");
  Finding memory{.subject = "memory",
                 .fact = StrCat(models::FormatBytes(total), ", of which ",
                                models::FormatBytes(free), " are free")};
  if (free < 0.25 * total) {
    memory.verdict = kSlow;
    memory.advice =
        "other processes take most of it: a run that fits when they have ended may not "
        "fit now";
  }
  findings.push_back(memory);
  if (const int nodes = CountNodes(folders.sys); nodes > 1) {
    findings.push_back(
        {.subject = "memory nodes",
         .fact = StrCat(nodes),
         .verdict = kSlow,
         .advice = StrCat("a process whose threads are on several nodes waits for the memory of "
                          "the others: start a rank for each, as --nproc=",
                          nodes, ", bound by ", "the scheduler or numactl")});
  }
  const std::string pages = LineOf(folders.sys + "/kernel/mm/transparent_hugepage/enabled");
  if (!pages.empty()) {
    Finding huge{.subject = "huge pages",
                 .fact = pages.substr(pages.find('[') + 1, pages.find(']') - pages.find('[') - 1)};
    if (huge.fact == "never") {
      huge.verdict = kSlow;
      huge.advice =
          "large tensors are read through pages of 4 KiB: echo madvise > "
          "/sys/kernel/mm/transparent_hugepage/enabled";
    }
    findings.push_back(huge);
  }
  struct statfs shared {};
  if (statfs(folders.shm.c_str(), &shared) == 0) {
    const double bytes = static_cast<double>(shared.f_blocks) * static_cast<double>(shared.f_bsize);
    Finding shm{.subject = "shared memory", .fact = models::FormatBytes(bytes)};
    if (bytes < double{1 << 28}) {
      shm.verdict = kSlow;
      shm.advice =
          "NCCL's ranks of one machine need more where GPUs do not reach each other's "
          "memory: docker run --shm-size=1g";
    }
    findings.push_back(shm);
  }
  return findings;
}

std::vector<Finding> CheckFolder(const std::string& folder) {
  struct statfs system {};
  if (statfs(folder.c_str(), &system) != 0) {
    return {{.subject = "folder",
             .fact = folder,
             .verdict = kBroken,
             .advice = "it is not there: make it, or name another by --folder"}};
  }
  const double free = static_cast<double>(system.f_bavail) * static_cast<double>(system.f_bsize);
  Finding found{.subject = "folder",
                .fact = StrCat(folder, ", ",
                               FileSystemName(static_cast<uint64_t>(system.f_type) & 0xFFFFFFFF),
                               ", ", models::FormatBytes(free), " free")};
  try {
    const double seconds = SecondsToStore(folder);
    found.fact += fmt::format(", 16 MiB stored in {:.2f} s", seconds);
    if (seconds > 1) {
      found.verdict = kSlow;
      found.advice =
          "checkpoints are written while training continues, and can be no more frequent "
          "than this disk takes for one: use a nearer one for out_dir, and "
          "checkpoint.mirror for the copy";
    }
  } catch (const IoError& e) {
    found.verdict = kBroken;
    found.advice = e.what();
  }
  return {found};
}

std::vector<Finding> CheckGpus(const MachineFolders& folders) {
  const bool has_driver = PathExists(folders.proc + "/driver/nvidia/version");
  if (cuda::Simulated()) {
    Finding none{.subject = "GPUs", .fact = "none: this program was built for CPUs"};
    if (const char* simulator = std::getenv("LOCKSTEP_SIMULATED_GPU");
        simulator != nullptr && *simulator != '\0') {
      none.fact = "simulated, since LOCKSTEP_SIMULATED_GPU is set";
    } else if (has_driver) {
      none.verdict = kSlow;
      none.advice = "there is a driver: build with --config=cuda to train on the GPU";
    }
    return {none};
  }
  try {
    const int count = cuda::DeviceCount();
    if (count == 0) return {{.subject = "GPUs", .fact = "none"}};
    std::vector<Finding> findings;
    for (int i = 0; i < count; ++i) findings.push_back(CheckGpu(i));
    std::string versions;
    for (const auto& [name, version] : dist::GpuVersions()) {
      versions += StrCat(versions.empty() ? "" : ", ", name, " ", version);
    }
    findings.push_back({.subject = "libraries", .fact = versions});
    return findings;
  } catch (const Error& e) {
    return {{.subject = "GPUs", .fact = "none", .verdict = kBroken, .advice = e.what()}};
  }
}

std::vector<Finding> CheckNumbers() {
  std::string rates;
  for (const char* precision : {"fp32", "bf16"}) {
    const auto flops = models::MeasureGemmFlops(kCpu, precision);
    if (!flops) continue;
    rates += fmt::format("{}{} {:.0f} GFLOP/s", rates.empty() ? "" : ", ", precision, *flops / 1e9);
  }
  return {{.subject = "products", .fact = rates},
          {.subject = "bits",
           .fact = StrCat("fp32 and fp16: those of every x86-64 CPU; bf16: ",
                          cpu::DescribeProducts(DType::kBF16),
                          " (train.numerics=portable leaves both out)")}};
}

std::string Screen(const std::vector<Finding>& findings, int columns) {
  constexpr size_t kIndent = 16;
  const auto width = static_cast<size_t>(std::max(columns, 40));
  std::string screen;
  const auto write = [&](const std::string& head, const std::string& text) {
    std::string line = fmt::format("{:<{}}", head, kIndent);
    std::istringstream words(text);
    for (std::string word; words >> word;) {
      if (line.size() > kIndent && line.size() + word.size() + 1 > width) {
        screen += line + "\n";
        line = std::string(kIndent, ' ');
      }
      line += (line.size() > kIndent ? " " : "") + word;
    }
    screen += line + "\n";
  };
  for (const Finding& f : findings) {
    write(f.subject, f.fact);
    if (f.verdict != kGood) write(f.verdict == kSlow ? "  slow:" : "  broken:", f.advice);
  }
  return screen;
}

}  // namespace lockstep::tools
