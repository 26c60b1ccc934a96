// Running a kernel.
#ifndef CUDASIM_PTX_LAUNCH_H_
#define CUDASIM_PTX_LAUNCH_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "cudasim/access.h"
#include "tools/cudasim/ptx/program.h"
#include "tools/cudasim/ptx/warp.h"

namespace cudasim {
namespace ptx {

class Counters;

// A kernel did something wrong, and its grid was abandoned. The message names the kernel, a thread
// and the place in the source.
struct Fault : std::runtime_error {
  Fault(Bug bug, const std::string& text) : std::runtime_error(text), bug(bug) {}
  Bug bug;
};

struct Size {
  uint32_t x = 1, y = 1, z = 1;
  uint64_t count() const { return uint64_t{x} * y * z; }
  bool operator==(const Size&) const = default;
};

struct Launch {
  const Program* program = nullptr;
  Size grid, block;
  size_t dynamic_shared = 0;  // bytes
  bool cooperative = false;   // all blocks make progress together
  std::vector<std::byte> parameters;
};

// How kernels run. Results that depend on it come from a race.
struct Settings {
  int threads = 1;  // of the operating system's
  // The order of blocks, and of warps within a block.
  enum class Order : uint8_t { kForward, kReverse, kRandom };
  Order order = Order::kForward;
  // With kRandom, warps also take turns after a random number of accesses to memory and of
  // instructions that synchronise, and the lanes of a warp part and meet at random. The same seed
  // gives the same turns within each block.
  uint64_t seed = 1;
  bool find_races = false;       // see detectors/races.h; blocks run on one thread
  Counters* counters = nullptr;  // counts what kernels do: see detectors/counters.h
  // Global memory: what a kernel may access around an address, and what an address is, for reports.
  std::function<Extent(uintptr_t)> accessible;  // unset: everything
  std::function<std::string(uintptr_t)> describe;
  // Called on each thread that runs blocks, with what runs them and throws nothing.
  std::function<void(const std::function<void()>&)> around;
  // Whether it is a bug if threads have exited when others meet at a barrier, or lanes of a
  // collective's mask. Legal since Volta, but seldom intended.
  bool report_exited = false;
  // Counts changes of what is accessible; null: each launch asks anew.
  const std::atomic<uint64_t>* changes = nullptr;
};

// The arguments as cudaLaunchKernel takes them: a pointer to each.
std::vector<std::byte> PackParameters(const Program& kernel, void* const* arguments);

// Runs all blocks. Throws Fault.
void Run(const Launch& launch, const Settings& settings);

}  // namespace ptx
}  // namespace cudasim

#endif  // CUDASIM_PTX_LAUNCH_H_
