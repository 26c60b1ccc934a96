// Runs the threads of a block on one OS thread.
//
// One fiber runs thread after thread as long as none waits. A thread that waits keeps its fiber,
// and the next thread gets another. The running warp continues, its lanes in the order of the
// settings, until all lanes wait for other warps; then the next warp that can run follows.
#ifndef CUDASIM_DEVICE_BLOCK_RUNNER_H_
#define CUDASIM_DEVICE_BLOCK_RUNNER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "async_copies.h"
#include "cudasim/executor.h"
#include "cudasim/launch.h"
#include "cudasim/sync.h"
#include "fiber.h"
#include "random.h"
#include "shared_memory.h"

namespace cudasim {

inline constexpr int kMaxThreads = 1024;
inline constexpr int kMaxWarps = kMaxThreads / 32;

class BlockRunner {
 public:
  BlockRunner();
  BlockRunner(const BlockRunner&) = delete;
  BlockRunner& operator=(const BlockRunner&) = delete;

  // The runner whose block runs on this OS thread, or null.
  static BlockRunner* Current();

  // Runs a block to its end; false if it was abandoned after a bug.
  bool Run(const Launch& launch, uint3 block, uint64_t seed);

  // Called by the block's threads.
  int SyncBlock(Vote vote, bool predicate, Where where);
  void Collective(const char* name, unsigned mask, CompleteFunction complete, void* payload,
                  Where where);
  void Yield();
  [[noreturn]] void GiveUp();

  unsigned ActiveLanes() const { return warps_[warp_].ready; }
  // Whether a thread of the block is running, rather than the scheduler.
  bool InThread() const { return in_fibers_; }
  int thread() const { return thread_; }
  int threads() const { return threads_; }
  const Launch& launch() const { return *launch_; }
  uint3 IndexOf(int thread) const { return threads_index_[static_cast<size_t>(thread)]; }
  SharedMemory& shared() { return shared_; }
  AsyncCopies& async_copies() { return async_copies_; }
  const FiberPool& fibers() const { return fibers_; }

 private:
  // A lane's call of a collective, while it waits.
  struct Call {
    const char* name;
    unsigned mask;
    CompleteFunction complete;
    void* payload;
    Where where;
  };

  // Each bit is a lane; every lane that exists is in one of ready, at_barrier, in_collective,
  // yielded and exited.
  struct Warp {
    unsigned exists = 0;
    unsigned ready = 0;
    unsigned unstarted = 0;  // lanes in `ready` without a fiber yet
    unsigned at_barrier = 0;
    unsigned in_collective = 0;
    unsigned yielded = 0;
    unsigned exited = 0;
    Call calls[32];
  };

  static void FiberMain();

  void Begin(const Launch& launch);
  void RunThreads();
  void EndThread();
  void Shuffle();

  // Chooses the thread to run next; false if none can.
  bool Pick();
  int NextOf(unsigned mask, const uint8_t* order) const;
  // The running thread waits; returns when it is its turn again.
  void Wait();
  void EnterThread(int thread);

  void ReleaseBarrier();
  void TryComplete(Warp* warp, const Call& call);
  void CheckCollectivesAfterExit(Warp* warp);

  // Report bugs.
  void ReportDeadlock();
  void ReportBarrierMismatch(Where here);
  void ReportExitedAtBarrier();
  void ReportCollectiveMismatch(const Warp& warp, const Call& call);
  void ReportExitedLanes(const Warp& warp, const Call& call);
  std::string Threads(unsigned Warp::*state) const;
  std::string WhereLanesAre(const Warp& warp, unsigned lanes) const;
  std::string Lanes(const Warp& warp, unsigned lanes) const;

  FiberPool fibers_;
  Fiber main_;              // the OS thread's stack
  Fiber* fiber_ = nullptr;  // the running one
  bool in_fibers_ = false;
  bool given_up_ = false;

  const Launch* launch_ = nullptr;
  dim3 shape_{0, 0, 0};  // the shape for which threads_index_ is valid
  int threads_ = 0;
  int live_ = 0;
  int exited_ = 0;
  int warp_ = 0;    // running
  int thread_ = 0;  // running
  unsigned ready_warps_ = 0;
  unsigned yielded_warps_ = 0;
  int warp_count_ = 0;
  Warp warps_[kMaxWarps];
  std::vector<Fiber*> thread_fiber_;
  std::vector<uint3> threads_index_;

  struct {
    int arrived = 0;
    int votes = 0;
    int result = 0;
    Vote vote = Vote::kNone;
    Where where;
  } barrier_;

  Order order_ = Order::kForward;
  bool report_exited_ = true;
  RandomBits random_{0};
  uint8_t warp_order_[kMaxWarps];
  uint8_t lane_order_[32];

  SharedMemory shared_;
  AsyncCopies async_copies_;
};

}  // namespace cudasim

#endif  // CUDASIM_DEVICE_BLOCK_RUNNER_H_
