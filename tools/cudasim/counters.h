// What kernels do, counted as they run on the simulated GPU: traffic of memory, instructions by
// kind, products of matrices. The counts are those of nvcc's PTX, which ptxas turns into fewer
// instructions of integers and moves, and leaves as it is in what concerns memory and matrices.
// tools/cudasim/ptx/README.md says by which rules sectors and wavefronts are counted.
#ifndef CUDASIM_COUNTERS_H_
#define CUDASIM_COUNTERS_H_

#include <array>
#include <cstdint>
#include <map>
#include <string>

namespace cudasim {

// Requests to a memory: each is an instruction's execution by a warp, of which any lanes take part.
struct Traffic {
  uint64_t requests = 0;
  uint64_t bytes = 0;  // that lanes asked for
  // What the memory moves: of global memory sectors of 32 bytes, of shared memory wavefronts, each
  // a cycle of its 32 banks.
  uint64_t moved = 0;
  // What it would move if the bytes that differ lay together; if no banks conflicted.
  uint64_t ideal = 0;

  Traffic& operator+=(const Traffic& more) {
    requests += more.requests;
    bytes += more.bytes;
    moved += more.moved;
    ideal += more.ideal;
    return *this;
  }
  double excess() const {
    return ideal == 0 ? 1 : static_cast<double>(moved) / static_cast<double>(ideal);
  }
};

enum class InstructionKind : uint8_t {
  kInteger,   // logic and comparisons too
  kFloat,     // of any size
  kSpecial,   // exp2, log2, sin, 1 / x and the like; divisions, also of integers; roots
  kConvert,   // to or from floating point
  kMove,      // and parameters, and constants: mostly free on a GPU
  kControl,   // branches, barriers, fences
  kExchange,  // shuffles, votes
  kTensor,    // mma
  kGlobal,    // accesses to this memory, cp.async among them
  kShared,    // ldmatrix among them
  kLocal,
  kCount
};

// Of a kernel, or of one of its source lines.
struct Counts {
  std::array<uint64_t, static_cast<size_t>(InstructionKind::kCount)> instructions = {};  // warps'
  Traffic global, shared;
  uint64_t local_bytes = 0;
  std::map<std::string, uint64_t> products;  // a warp's, by "m16n8k16.bf16"

  uint64_t of(InstructionKind kind) const { return instructions[static_cast<size_t>(kind)]; }
  Counts& operator+=(const Counts& more) {
    for (size_t k = 0; k < instructions.size(); ++k) instructions[k] += more.instructions[k];
    global += more.global;
    shared += more.shared;
    local_bytes += more.local_bytes;
    for (const auto& [shape, count] : more.products) products[shape] += count;
    return *this;
  }
};

struct KernelCounts {
  uint64_t launches = 0;
  Counts total;
  // By place: "a.cuh:12, inlined at b.cu:34", with -lineinfo; else "PTX line 56".
  std::map<std::string, Counts> lines;
};

// By the kernel's name, demangled, with its template's arguments.
using CountsByKernel = std::map<std::string, KernelCounts>;

// These are null in programs that do not contain the simulator.

// From now on counts the kernels that are launched, or no longer does; they take 2 to 3.4 times as
// long. CUDASIM_COUNTERS=1 counts from the start, and prints to stderr at the program's end what
// nobody has taken.
[[gnu::weak]] void CountKernels(bool count);
// What has been counted since the last call. The kernels must have ended.
[[gnu::weak]] CountsByKernel TakeCounts();
// A table with a line per kernel, behind `prefix`: its name without namespaces and template
// arguments, whose instances are added up. An empty `counts` gives the table's head.
[[gnu::weak]] std::string FormatCounts(const std::string& prefix, const CountsByKernel& counts);
// The places in each kernel that exceed their ideal most, beyond `excess`: at most three.
[[gnu::weak]] std::string FormatExcess(const CountsByKernel& counts, double excess);

// Whether anything ran since the last call whose bits a real GPU may not share: a kernel with
// .approx instructions, whose error PTX only bounds; one with mma, unless CUDASIM_EXACT_MMA=1; a
// product of cuBLASLt's.
[[gnu::weak]] bool TakeApproximated();

}  // namespace cudasim

#endif  // CUDASIM_COUNTERS_H_
