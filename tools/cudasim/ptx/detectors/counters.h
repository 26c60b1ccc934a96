// Counts what kernels do, if Settings::counters: see tools/cudasim/counters.h. Instructions are
// looked at before they run, in a loop of their own, so that nothing is paid where none are
// counted.
#ifndef CUDASIM_PTX_DETECTORS_COUNTERS_H_
#define CUDASIM_PTX_DETECTORS_COUNTERS_H_

#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "tools/cudasim/counters.h"
#include "tools/cudasim/ptx/program.h"

namespace cudasim {
namespace ptx {

// ---- What a warp's access costs, on an A100 or H100: of the lanes of `mask`, which access `bytes`
// bytes each, at a multiple of them. ----

// Sectors of 32 bytes that are touched; ideal: that as many bytes fill, without those that several
// lanes access.
Traffic GlobalTraffic(const uint64_t* at, uint32_t mask, uint32_t bytes);
// Wavefronts. A warp's 8 bytes a lane go in halves, 16 bytes in quarters, ldmatrix's in its
// matrices, if any of their lanes are active; each takes as many cycles as the most visited of 32
// banks has different words of 4 bytes, or with `atomic`, accesses. Ideal: a cycle for each.
Traffic SharedTraffic(const uint64_t* at, uint32_t mask, uint32_t bytes, bool atomic);

// What one thread of the operating system has counted of a grid.
class Tally {
 public:
  // The instruction that this warp runs next.
  void Count(const Warp& warp, const Instruction* i);
  // It has not run yet, since other lanes must come first.
  void Retract(const Warp& warp, const Instruction* i);
  void AddTo(KernelCounts* counts) const;

 private:
  // What an instruction is, found out when it is first counted, and what it did.
  struct Site {
    enum class What : uint8_t { kUnknown, kNotCounted, kOther, kAccess, kAtomic, kCopy, kMatrices };
    What what = What::kUnknown;
    InstructionKind kind = InstructionKind::kInteger;
    uint8_t bytes = 0;  // that a lane accesses
    uint64_t executions = 0;
    Traffic global, shared;
    uint64_t local_bytes = 0;
  };

  Site& SiteOf(const Warp& warp, const Instruction* i);
  static Site MakeSite(const Program& program, const Instruction* i);
  static void CountAccess(const Warp& warp, const Instruction* i, Site* site);
  static void CountCopy(const Warp& warp, const Instruction* i, Site* site);
  static void CountMatrices(const Warp& warp, const Instruction* i, Site* site);

  std::unordered_map<const Program*, std::vector<Site>> sites_;  // by number of the instruction
  const Program* last_ = nullptr;
  Site* last_sites_ = nullptr;
};

// What all kernels have done. Any thread may use it.
class Counters {
 public:
  void AddLaunch(const std::string& kernel);
  void Add(const std::string& kernel, const Tally& tally);
  CountsByKernel Take();

 private:
  std::mutex mutex_;
  CountsByKernel counts_;
};

}  // namespace ptx
}  // namespace cudasim

#endif  // CUDASIM_PTX_DETECTORS_COUNTERS_H_
