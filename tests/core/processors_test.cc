#include "core/system/processors.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <thread>

#include "core/io/file.h"

namespace lockstep {
namespace {

TEST(Processors, AreThoseOfTheAffinity) {
  const int all = UsableProcessors();
  EXPECT_GE(all, 1);
  std::thread([] {
    cpu_set_t mine, one;
    sched_getaffinity(0, sizeof(mine), &mine);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++i) {
      if (CPU_ISSET(i, &mine)) CPU_SET(i, &one);
    }
    const int machine = MachineProcessors();
    sched_setaffinity(0, sizeof(one), &one);
    EXPECT_EQ(UsableProcessors(), 1);
    EXPECT_EQ(MachineProcessors(), machine);
  }).join();
  EXPECT_EQ(UsableProcessors(), all);
}

TEST(Processors, AreLimitedByTheLeastQuotaOfTheCgroups) {
  const std::string root = JoinPath(testing::TempDir(), "cgroup");
  const auto put = [&](const std::string& file, const std::string& text) {
    MakeDirectories(ParentPath(root + file));
    WriteFileAtomically(root + file, text);
  };
  put("/a/cpu.max", "150000 100000\n");
  put("/a/b/cpu.max", "max 100000\n");
  put("/cpu,cpuacct/c/cpu.cfs_quota_us", "300000\n");
  put("/cpu,cpuacct/c/cpu.cfs_period_us", "100000\n");
  put("/cpu,cpuacct/c/d/cpu.cfs_quota_us", "-1\n");
  put("/cpu,cpuacct/c/d/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(CgroupQuota("0::/a/b\n", root), 1.5);
  EXPECT_EQ(CgroupQuota("0::/\n", root), 0);
  EXPECT_EQ(CgroupQuota("5:memory:/c\n4:cpu,cpuacct:/c/d\n", root), 3);
  EXPECT_EQ(CgroupQuota("4:cpu,cpuacct:/c/d\n0::/a\n", root), 1.5);
  EXPECT_EQ(CgroupQuota("", root), 0);
}

}  // namespace
}  // namespace lockstep
