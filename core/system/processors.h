// How many processors there are for this process.
#pragma once

#include <string>

namespace lockstep {

// Those of its affinity (taskset, a job scheduler), and no more than the quotas of its cgroups
// allow, rounded up (docker --cpus=1.5: 2). At least 1.
int UsableProcessors();

// The least quota, in processors, of the cgroups that `list`, as /proc/self/cgroup, names, and of
// those around them; `root`, as /sys/fs/cgroup, has their files, of version 2 or 1. 0: none.
double CgroupQuota(const std::string& list, const std::string& root);

}  // namespace lockstep
