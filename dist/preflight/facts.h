// What a preflight finds out about the machines of a run.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::dist {

struct GpuFacts {
  std::string name;  // "NVIDIA H200"
  std::string bus;   // its PCI bus ID; empty without a GPU
  // The other GPUs that the process sees, by bus ID: whether this one reaches their memory (P2P).
  std::map<std::string, bool> peers = {};
};

// What a rank says of itself.
struct RankFacts {
  int local_rank = 0;
  std::string host;    // its machine's name
  std::string device;  // "cpu", "cuda:3"
  // Where other ranks reach it, by which interface, and why that one.
  std::string address, interface, why;
  std::map<std::string, int> mbits = {};             // speed of each interface, where it is known
  std::map<std::string, std::string> versions = {};  // "NCCL" -> "2.27.3"
  std::map<std::string, std::string> settings = {};  // the environment variables of NCCL
  GpuFacts gpu = {};
};

// Two ranks that swapped data.
struct PairFacts {
  static constexpr int kSwaps = 30;  // of a few bytes, then of more

  int a = 0, b = 0;       // a < b
  bool answered = false;  // whether all swaps ended within the patience; else only `swaps` is known
  bool right = false;     // whether what arrived is what was sent
  double latency = 0;     // seconds of a swap of a few bytes
  double bandwidth = 0;   // bytes per second in each direction, both at once
  int swaps = 0;          // how many ended; 0 also where that is not known
};

// An all-reduce over all ranks.
struct SumFacts {
  bool answered = false, right = false;
  int64_t bytes = 0;
  double seconds = 0;  // on the slowest rank
};

// How far the clock of a rank's machine is ahead of rank 0's, in seconds.
struct ClockFacts {
  int rank = 0;
  double ahead = 0, error = 0;
};

struct GpuClocks {
  int mhz = 0, most_mhz = 0;           // of the multiprocessors: now, and at most
  std::vector<std::string> slowed_by;  // "heat": why the driver holds them back
};

struct PreflightFacts {
  std::vector<RankFacts> ranks;
  std::vector<PairFacts> pairs;
  std::optional<SumFacts> sum;
  std::vector<ClockFacts> clocks;
  std::map<int, GpuClocks> gpu_clocks;  // by rank; after the measurements
  double patience = 0;                  // seconds that a pair has for all of its swaps
  std::string failure;                  // the error that ended the measurements
};

// The same on each line, as ranks send it. Parse throws InputError for what no rank writes.
std::string ToText(const RankFacts& facts);
RankFacts ParseRankFacts(const std::string& text);
std::string ToText(const std::optional<GpuClocks>& clocks);
std::optional<GpuClocks> ParseGpuClocks(const std::string& text);

// The ranks of each machine, ascending. Ranks of two launchers on one machine count as ranks of
// two.
std::vector<std::vector<int>> MachinesOf(const std::vector<RankFacts>& ranks);
// The index of the machine of each rank.
std::vector<int> MachineOfRanks(const std::vector<std::vector<int>>& machines);

}  // namespace lockstep::dist
