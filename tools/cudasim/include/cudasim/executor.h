// How kernels run: settings, read from the environment on first use. Tests may change them while no
// kernel runs.
#ifndef CUDASIM_EXECUTOR_H_
#define CUDASIM_EXECUTOR_H_

#include <cstdint>

namespace cudasim {

enum class Order { kForward, kReverse, kRandom };

struct ExecutorSettings {
  // CUDASIM_ORDER=forward|reverse|random[:seed]: the order in which the blocks of a grid, the warps
  // of a block and the lanes of a warp run. Results that depend on it come from a race.
  Order order = Order::kForward;
  uint64_t seed = 1;
  // CUDASIM_THREADS: the number of OS threads that run blocks (default: the processor's, at most
  // 16).
  int threads = 1;
  // CUDASIM_ON_BUG=abort|error.
  bool abort_on_bug = true;
  // CUDASIM_EXITED=report|allow: whether it is a bug if a thread has exited when the others of its
  // block meet at a barrier, or a lane in a collective's mask has. Legal since Volta, but seldom
  // intended.
  bool report_exited = true;
  // CUDASIM_RACES=1|0: whether kernels are searched for races, reads of shared
  // memory that was never written, and missing waits for cp.async (../../ptx/detectors).
  bool find_races = false;
};

// Null in programs that do not contain the simulator.
[[gnu::weak]] ExecutorSettings& GetExecutorSettings();

}  // namespace cudasim

#endif  // CUDASIM_EXECUTOR_H_
