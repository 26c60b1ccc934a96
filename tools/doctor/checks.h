// What a machine has for training, what is slow or missing there, and what to do about it.
#pragma once

#include <string>
#include <vector>

namespace lockstep::tools {

struct Finding {
  // kSlow: it works, and would be faster otherwise. kBroken: something will not work.
  enum class Verdict { kGood, kSlow, kBroken };
  std::string subject;  // "processors"
  std::string fact;     // "2, AMD EPYC"
  Verdict verdict = Verdict::kGood;
  std::string advice{};  // unless it is good: what that costs, and the remedy
};

// The folders from which facts are read; a test has others.
struct MachineFolders {
  std::string proc = "/proc", sys = "/sys", shm = "/dev/shm";
};

// The CPU, how many processors there are for this process, and who else uses them.
std::vector<Finding> CheckProcessors(const MachineFolders& folders);
// Memory, its nodes and its pages, and what ranks of one machine share.
std::vector<Finding> CheckMemory(const MachineFolders& folders);
// The file system of a folder in which a run would write, how much it holds and how long a file of
// 16 MiB takes until it is on the disk. Makes the file there, and removes it.
std::vector<Finding> CheckFolder(const std::string& folder);
// The GPUs, their driver and the libraries, or why there are none.
std::vector<Finding> CheckGpus(const MachineFolders& folders);
// How fast large products are in f32 and bf16, and what decides the bits of a run here.
std::vector<Finding> CheckNumbers();

// One screen, for a terminal of so many columns.
std::string Screen(const std::vector<Finding>& findings, int columns);

}  // namespace lockstep::tools
