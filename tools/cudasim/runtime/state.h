// The state of the simulated machine, and streams as queues of operations. One lock guards all of
// it; operations run without it, on a thread per stream.
#ifndef CUDASIM_RUNTIME_STATE_H_
#define CUDASIM_RUNTIME_STATE_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "block.h"
#include "clock.h"
#include "cudasim/bug.h"
#include "cudasim/launch.h"
#include "cudasim/runtime_api.h"

// A memory pool, which only counts, since each allocation takes fresh memory.
struct CUmemPoolHandle_st {
  int device = 0;
  uint64_t release_threshold = 0;
  uint64_t used = 0;
  uint64_t used_high = 0;
  size_t max_size = 0;          // 0: the device's memory.
  int reuse[4] = {0, 1, 1, 1};  // By cudaMemPoolReuse...; stored, but without effect.
  bool is_default = false;
};

namespace cudasim::runtime {

using Pool = CUmemPoolHandle_st;

using TimePoint = std::chrono::steady_clock::time_point;

// Memory that an operation uses. A kernel's pointer argument is a range of one byte.
struct Range {
  const void* address = nullptr;
  size_t size = 0;
  bool write = false;
};

// Enqueued work.
struct Op;

struct Work {
  cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
  std::string what;                  // For reports: "cudaMemcpyAsync of 64 bytes", a kernel's name.
  std::function<cudaError_t()> run;  // Empty: a marker.
  std::vector<Range> ranges;
  std::vector<std::shared_ptr<Op>> waits;  // In addition to the stream's order.
  int device = -1;                         // -1: the stream's.
};

// Work in a stream, which runs after everything enqueued there earlier and after `waits`.
struct Op {
  Work work;
  CUstream_st* stream = nullptr;
  std::vector<std::shared_ptr<Op>> waits;
  Clock clock;
  TimePoint due;          // With CUDASIM_DELAY: when it may begin even if nothing waits for it.
  bool demanded = false;  // Something waits for it.
  bool done = false;
  TimePoint finished;
};

struct Capture;

struct Device {
  int index = 0;
  bool context = false;  // Whether this process has opened one.
  cudaError_t sticky = cudaSuccess;
  size_t used = 0;
  std::atomic<unsigned> peers{0};  // Bits of the devices whose memory it may use.
  Pool default_pool;
  Pool* pool = nullptr;
  CUstream_st* legacy = nullptr;
};

// The process's simulated machine. Never destroyed: threads may outlive main.
struct State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Device> devices;
  std::set<CUstream_st*> streams;  // Except the default ones.
  std::set<CUstream_st*> all_streams;
  std::set<CUevent_st*> events;
  std::set<Pool*> pools;
  std::set<Capture*> captures;  // In progress.
  Clock host;                   // What the host has waited for.
  uint64_t next_id = 1;
  bool unloading = false;
  int running = 0;  // Operations that are running.
};

State& GetState();
using Lock = std::unique_lock<std::mutex>;

// The state of a host thread.
struct ThreadState {
  int device = 0;
  cudaError_t last_error = cudaSuccess;
  cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
  // While it runs blocks of a kernel: reports what faulted, and leaves the kernel.
  // It takes the text over, since it passes the destructors of its callers.
  void (*leave_kernel)(uintptr_t address, Bug bug, std::string&& text) = nullptr;
};
ThreadState& GetThread();

// Set by what computes bits that a real GPU may not share: see TakeApproximated in counters.h.
std::atomic<bool>& Approximated();

// Every API function returns through this, which remembers the thread's last error.
cudaError_t Return(cudaError_t error);
// The current device's sticky error, or that there is no device. For functions that need a context:
// opens it.
cudaError_t Sticky(const Lock&);
Device& CurrentDevice(const Lock&);

// Reports a bug that a detector found in the program. With CUDASIM_ON_BUG=error it returns, and the
// error sticks to the device (-1: the current one). Call without the lock.
void ReportBug(int device, Bug bug, const std::string& text);

// Streams. `handle` may be 0, cudaStreamLegacy or cudaStreamPerThread. Null if there is no such
// stream.
CUstream_st* Resolve(const Lock&, cudaStream_t handle);

// Enqueues work, or adds it to the graph into which the stream is captured. Sets `op` to what to
// wait for; leaves it empty within a capture.
cudaError_t Submit(cudaStream_t handle, Work work, std::shared_ptr<Op>* op = nullptr);
cudaError_t SubmitLocked(Lock& lock, CUstream_st* stream, Work work, std::shared_ptr<Op>* op);
// What a memset of a graph does, in a stream.
cudaError_t SetElements(const cudaMemsetParams& to, cudaStream_t stream);
// Something waits for `op`: it must run, and so must all it depends on.
void Demand(const Lock&, const std::shared_ptr<Op>& op);
// Blocks the host until `op` is done.
void WaitFor(Lock& lock, const std::shared_ptr<Op>& op);
// Blocks until everything enqueued on the device's streams is done.
void WaitForDevice(Lock& lock, int device);

// Refuses calls that may synchronise while a capture forbids it: returns the error, and invalidates
// this thread's captures (and global ones of others).
cudaError_t CheckUnsafeCall(const Lock&);

// The check that an operation's uses of memory are ordered (ordering.cc). Adds bugs found to
// `bugs`.
void CheckOrdering(const Lock&, const Op& op, std::vector<std::string>* bugs);

}  // namespace cudasim::runtime

// A stream: a queue, run by a thread that starts with its first operation.
struct CUstream_st {
  int device = 0;
  uint64_t id = 0;
  unsigned flags = 0;
  int priority = 0;
  bool legacy = false;
  bool has_worker = false;
  bool destroyed = false;
  int polls = 0;
  std::deque<std::shared_ptr<cudasim::runtime::Op>> queue;
  std::shared_ptr<cudasim::runtime::Op> last;  // The newest operation; may be done.
  cudasim::runtime::Clock clock;
  uint64_t ticks = 0;
  // While it is captured: the capture, and the nodes that the next one follows.
  std::shared_ptr<cudasim::runtime::Capture> capture;
  std::vector<CUgraphNode_st*> capture_after;

  bool blocking() const { return (flags & cudaStreamNonBlocking) == 0; }
};

struct CUevent_st {
  int device = 0;
  unsigned flags = 0;
  int polls = 0;
  std::shared_ptr<cudasim::runtime::Op> op;  // The record; null if never recorded.
  // Set if recorded during a capture.
  std::weak_ptr<cudasim::runtime::Capture> capture;
  bool captured = false;
  std::vector<CUgraphNode_st*> capture_after;
};

#endif  // CUDASIM_RUNTIME_STATE_H_
