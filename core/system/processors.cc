#include "core/system/processors.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

#include "core/io/file.h"

namespace lockstep {
namespace {

// Of one cgroup; 0: none.
double QuotaIn(const std::string& folder) {
  double quota = 0, period = 0;
  std::ifstream both(folder + "/cpu.max");  // version 2: "max 100000" or "150000 100000"
  if (both >> quota >> period && period > 0) return quota / period;
  std::ifstream microseconds(folder + "/cpu.cfs_quota_us"), of(folder + "/cpu.cfs_period_us");
  if (microseconds >> quota && of >> period && quota > 0 && period > 0) return quota / period;
  return 0;
}

int Affinity() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::thread::hardware_concurrency());  // more than a cpu_set_t holds
}

}  // namespace

double CgroupQuota(const std::string& list, const std::string& root) {
  double least = 0;
  std::istringstream in(list);
  for (std::string line; std::getline(in, line);) {
    // "0::/path" of version 2, "4:cpu,cpuacct:/path" of version 1
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool has_cpu = ("," + controllers + ",").find(",cpu,") != std::string::npos;
    if (!controllers.empty() && !has_cpu) continue;
    const std::string mount = controllers.empty() ? root : root + "/" + controllers;
    for (std::string path = line.substr(second + 1); !path.empty();
         path = path == "/" ? "" : ParentPath(path)) {
      const double quota = QuotaIn(mount + (path == "/" ? "" : path));
      if (quota > 0 && (least == 0 || quota < least)) least = quota;
    }
  }
  return least;
}

int MachineProcessors() {
  std::ifstream in("/proc/self/cgroup");
  const std::string list(std::istreambuf_iterator<char>(in), {});
  const double quota = CgroupQuota(list, "/sys/fs/cgroup");
  const int all = std::max(Affinity(), static_cast<int>(std::thread::hardware_concurrency()));
  return std::max(1, quota > 0 ? std::min(all, static_cast<int>(std::ceil(quota - 1e-6))) : all);
}

int UsableProcessors() { return std::max(1, std::min(Affinity(), MachineProcessors())); }

}  // namespace lockstep
