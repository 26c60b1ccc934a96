// How many processors this process may use.
#pragma once

#include <string>

namespace lockstep {

// The processors of its affinity mask (taskset, a job scheduler), but no more than the quotas of
// its cgroups allow, rounded up (docker --cpus=1.5: 2). At least 1.
int UsableProcessors();

// Those of the machine, but no more than the same quotas allow: what processes share that are not
// bound to processors of their own. At least 1.
int MachineProcessors();

// The smallest quota, in processors, of the cgroups that `list` names (the text of
// /proc/self/cgroup) and of those that contain them; 0 if there is none. `root` is where their
// files lie (/sys/fs/cgroup), of version 2 or 1.
double CgroupQuota(const std::string& list, const std::string& root);

}  // namespace lockstep
