#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/io/file.h"
#include "core/system/instruction_set.h"
#include "tools/doctor/checks.h"

namespace lockstep::tools {
namespace {

using testing::HasSubstr;
using enum Finding::Verdict;

// A machine made of files.
class Doctor : public testing::Test {
 protected:
  Doctor() {
    RemoveTree(root_);
    Write("proc/cpuinfo", "processor\t: 0\nmodel name\t: A Fast CPU\n");
    Write("proc/loadavg", "0.00 0.00 0.00 1/100 1\n");
    Write("proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 12582912 kB\n");
    Write("sys/devices/system/node/node0/meminfo", "");
    Write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  }

  void Write(const std::string& path, const std::string& text) {
    const std::string file = JoinPath(root_, path);
    MakeDirectories(ParentPath(file));
    WriteFileAtomically(file, text);
  }
  MachineFolders Folders() const {
    return {.proc = root_ + "/proc", .sys = root_ + "/sys", .shm = root_ + "/shm"};
  }
  // The finding of this name; one that is broken if there is none.
  static Finding Of(const std::vector<Finding>& findings, const std::string& subject) {
    const auto found = std::ranges::find(findings, subject, &Finding::subject);
    return found != findings.end() ? *found : Finding{.verdict = kBroken, .advice = "not found"};
  }

  const std::string root_ = JoinPath(testing::TempDir(), "machine");
};

TEST_F(Doctor, FindsNothingWrongWithAGoodMachine) {
  for (const auto& findings : {CheckProcessors(Folders()), CheckMemory(Folders())}) {
    for (const Finding& f : findings) {
      const bool limited = f.subject == "CPU" && CpuInstructionSet() != UsedInstructionSet();
      EXPECT_EQ(f.verdict, limited ? kSlow : kGood) << f.subject << f.advice;
    }
  }
  EXPECT_THAT(Of(CheckProcessors(Folders()), "CPU").fact, HasSubstr("A Fast CPU"));
  EXPECT_THAT(Of(CheckMemory(Folders()), "memory").fact, HasSubstr("16.0 GiB"));
}

TEST_F(Doctor, SaysWhatIsSlow) {
  Write("proc/loadavg", "1000.00 0.00 0.00 1/100 1\n");
  Write("proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 1048576 kB\n");
  Write("sys/devices/system/node/node1/meminfo", "");
  Write("sys/devices/system/node/has_cpu", "0-1\n");  // no node
  Write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  Write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
  Write("sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", "acpi-cpufreq\n");
  const auto processors = CheckProcessors(Folders()), memory = CheckMemory(Folders());
  EXPECT_THAT(Of(processors, "processors").advice, HasSubstr("1000"));
  EXPECT_THAT(Of(processors, "frequency").advice, HasSubstr("performance"));
  EXPECT_EQ(Of(memory, "memory").verdict, kSlow);
  EXPECT_THAT(Of(memory, "memory nodes").advice, HasSubstr("--nproc=2"));
  EXPECT_THAT(Of(memory, "huge pages").advice, HasSubstr("madvise"));
  // A driver that chooses clocks by itself calls its usual way so.
  Write("sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", "intel_pstate\n");
  EXPECT_EQ(Of(CheckProcessors(Folders()), "frequency").verdict, kGood);
}

TEST_F(Doctor, TriesTheFolder) {
  EXPECT_THAT(CheckFolder(root_)[0].fact, HasSubstr("stored in"));
  EXPECT_EQ(ListDirectory(root_), (std::vector<std::string>{"proc", "sys"}));
  EXPECT_EQ(CheckFolder(root_ + "/none")[0].verdict, kBroken);
  EXPECT_EQ(CheckFolder(root_ + "/proc/loadavg")[0].verdict, kBroken);  // a file
}

TEST_F(Doctor, SaysWhichGpusAndNumbersThereAre) {
  EXPECT_FALSE(CheckGpus(Folders()).empty());
  EXPECT_THAT(Of(CheckNumbers(), "products").fact, HasSubstr("GFLOP/s"));
  EXPECT_THAT(Of(CheckNumbers(), "bits").fact, HasSubstr("bf16"));
}

TEST_F(Doctor, FitsTheScreen) {
  const std::string screen =
      Screen({{.subject = "one", .fact = std::string(30, 'x') + " and " + std::string(30, 'y')},
              {.subject = "two", .fact = "z", .verdict = kSlow, .advice = "do something"}},
             /*columns=*/60);
  EXPECT_EQ(screen, "one             " + std::string(30, 'x') + " and\n" + std::string(16, ' ') +
                        std::string(30, 'y') +
                        "\ntwo             z\n  slow:         do something\n");
}

}  // namespace
}  // namespace lockstep::tools
