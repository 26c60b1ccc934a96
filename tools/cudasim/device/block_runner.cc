#include "block_runner.h"

#include <cstring>
#include <utility>

#include "race.h"
#include "report.h"

CUDASIM_THREAD_LOCAL uint3 threadIdx{0, 0, 0};
CUDASIM_THREAD_LOCAL uint3 blockIdx{0, 0, 0};
CUDASIM_THREAD_LOCAL dim3 blockDim{1, 1, 1};
CUDASIM_THREAD_LOCAL dim3 gridDim{1, 1, 1};

namespace cudasim {
namespace {

CUDASIM_THREAD_LOCAL BlockRunner* current = nullptr;

bool SamePlace(const Where& a, const Where& b) {
  // They are nearly always the same constant.
  if (std::memcmp(&a, &b, sizeof(a)) == 0) return true;
  return a.line() == b.line() && a.column() == b.column() &&
         (a.file_name() == b.file_name() || std::strcmp(a.file_name(), b.file_name()) == 0);
}

}  // namespace

BlockRunner::BlockRunner()
    : fibers_(&BlockRunner::FiberMain), thread_fiber_(kMaxThreads), threads_index_(kMaxThreads) {}

BlockRunner* BlockRunner::Current() { return current; }

void BlockRunner::Begin(const Launch& launch) {
  launch_ = &launch;
  const ExecutorSettings& settings = GetExecutorSettings();
  order_ = settings.order;
  report_exited_ = settings.report_exited;
  gridDim = launch.grid;
  blockDim = launch.block;
  const dim3 shape = launch.block;
  if (shape.x != shape_.x || shape.y != shape_.y || shape.z != shape_.z) {
    shape_ = shape;
    threads_ = static_cast<int>(shape.x * shape.y * shape.z);
    warp_count_ = (threads_ + 31) / 32;
    size_t thread = 0;
    for (unsigned z = 0; z < shape.z; ++z) {
      for (unsigned y = 0; y < shape.y; ++y) {
        for (unsigned x = 0; x < shape.x; ++x) threads_index_[thread++] = uint3{x, y, z};
      }
    }
  }
  live_ = threads_;
  exited_ = 0;
  ready_warps_ = warp_count_ == 32 ? ~0u : (1u << warp_count_) - 1;
  yielded_warps_ = 0;
  for (int i = 0; i < warp_count_; ++i) {
    Warp& warp = warps_[i];
    const int lanes = threads_ - 32 * i;
    warp.exists = lanes >= 32 ? ~0u : (1u << lanes) - 1;
    warp.ready = warp.unstarted = warp.exists;
    warp.at_barrier = warp.in_collective = warp.yielded = warp.exited = 0;
  }
  barrier_.arrived = 0;
  shared_.BeginBlock(launch.shared_bytes);
  async_copies_.BeginBlock();
}

// A new random order.
void BlockRunner::Shuffle() {
  if (order_ != Order::kRandom) return;
  for (int i = 0; i < warp_count_; ++i) warp_order_[i] = static_cast<uint8_t>(i);
  for (int i = 0; i < 32; ++i) lane_order_[i] = static_cast<uint8_t>(i);
  for (int i = warp_count_ - 1; i > 0; --i) {
    std::swap(warp_order_[i], warp_order_[random_.Below(static_cast<uint64_t>(i) + 1)]);
  }
  for (int i = 31; i > 0; --i) {
    std::swap(lane_order_[i], lane_order_[random_.Below(static_cast<uint64_t>(i) + 1)]);
  }
}

bool BlockRunner::Run(const Launch& launch, uint3 block, uint64_t seed) {
  blockIdx = block;
  Begin(launch);
  random_ = RandomBits(seed);
  Shuffle();
  given_up_ = false;
  current = this;
  main_ = Fiber();  // this OS thread's stack
  RaceBeginBlock(this);
  warp_ = NextOf(ready_warps_, warp_order_);
  Pick();
  fiber_ = fibers_.Take();
  {
    const IgnoreLeaks ignore_leaks(!GetExecutorSettings().abort_on_bug);
    in_fibers_ = true;
    SwitchFiber(&main_, fiber_);
    in_fibers_ = false;
  }
  RaceEndBlock();
  if (given_up_) {
    fibers_.Reset();
    shared_.EndBlock();
  } else if (const std::string damage = shared_.EndBlock(); !damage.empty()) {
    given_up_ = true;
    Report(Bug::kOutOfBounds, damage);
  }
  current = nullptr;
  return !given_up_;
}

void BlockRunner::FiberMain() {
  EnterFiber();
  current->RunThreads();
}

// A fiber's loop: runs threads from begin to end.
void BlockRunner::RunThreads() {
  Fiber* const self = fiber_;
  for (;;) {
    warps_[warp_].unstarted &= ~(1u << (thread_ % 32));
    threadIdx = threads_index_[static_cast<size_t>(thread_)];
    RaceEnterThread(thread_);
    launch_->body();
    EndThread();
    if (live_ == 0) {
      fibers_.GiveBack(self);
      SwitchFiber(self, &main_);
      continue;  // the next block's first thread
    }
    if (!Pick()) ReportDeadlock();
    if ((warps_[warp_].unstarted >> (thread_ % 32) & 1u) != 0) continue;
    fibers_.GiveBack(self);
    fiber_ = thread_fiber_[static_cast<size_t>(thread_)];
    SwitchFiber(self, fiber_);
  }
}

void BlockRunner::EndThread() {
  Warp& warp = warps_[warp_];
  const unsigned lane = 1u << (thread_ % 32);
  warp.ready &= ~lane;
  warp.exited |= lane;
  --live_;
  ++exited_;
  if (live_ == 0) return;
  if (warp.in_collective != 0) CheckCollectivesAfterExit(&warp);
  if (barrier_.arrived == live_) ReleaseBarrier();
}

inline int BlockRunner::NextOf(unsigned mask, const uint8_t* order) const {
  if (order_ == Order::kForward) return __builtin_ctz(mask);
  if (order_ == Order::kReverse) return 31 - __builtin_clz(mask);
  for (;; ++order) {
    if ((mask >> *order & 1u) != 0) return *order;
  }
}

inline bool BlockRunner::Pick() {
  for (;;) {
    const unsigned ready = warps_[warp_].ready;
    if (ready != 0) {
      thread_ = 32 * warp_ + NextOf(ready, lane_order_);
      return true;
    }
    ready_warps_ &= ~(1u << warp_);
    if (ready_warps_ == 0) {
      if (yielded_warps_ == 0) return false;
      for (unsigned rest = yielded_warps_; rest != 0; rest &= rest - 1) {
        Warp& warp = warps_[__builtin_ctz(rest)];
        warp.ready |= std::exchange(warp.yielded, 0);
      }
      ready_warps_ = std::exchange(yielded_warps_, 0);
    }
    warp_ = NextOf(ready_warps_, warp_order_);
  }
}

inline __attribute__((always_inline)) void BlockRunner::Wait() {
  const int me = thread_;
  if (!Pick()) ReportDeadlock();
  if (thread_ == me) return;
  Fiber* const self = fiber_;
  thread_fiber_[static_cast<size_t>(me)] = self;
  const bool fresh = (warps_[warp_].unstarted >> (thread_ % 32) & 1u) != 0;
  fiber_ = fresh ? fibers_.Take() : thread_fiber_[static_cast<size_t>(thread_)];
  SwitchFiber(self, fiber_);
  threadIdx = threads_index_[static_cast<size_t>(me)];
  RaceEnterThread(me);
}

void BlockRunner::Yield() {
  Warp& warp = warps_[warp_];
  const unsigned lane = 1u << (thread_ % 32);
  warp.ready &= ~lane;
  warp.yielded |= lane;
  yielded_warps_ |= 1u << warp_;
  Wait();
}

int BlockRunner::SyncBlock(Vote vote, bool predicate, Where where) {
  if (barrier_.arrived == 0) {
    barrier_.where = where;
    barrier_.vote = vote;
    barrier_.votes = 0;
  } else if (!SamePlace(barrier_.where, where)) {
    ReportBarrierMismatch(where);
  }
  ++barrier_.arrived;
  barrier_.votes += predicate ? 1 : 0;
  Warp& warp = warps_[warp_];
  const unsigned lane = 1u << (thread_ % 32);
  warp.ready &= ~lane;
  warp.at_barrier |= lane;
  if (barrier_.arrived == live_) ReleaseBarrier();
  Wait();
  return barrier_.result;
}

void BlockRunner::ReleaseBarrier() {
  if (exited_ != 0 && report_exited_) ReportExitedAtBarrier();
  const int arrived = std::exchange(barrier_.arrived, 0);
  switch (barrier_.vote) {
    case Vote::kNone:
      break;
    case Vote::kCount:
      barrier_.result = barrier_.votes;
      break;
    case Vote::kAnd:
      barrier_.result = barrier_.votes == arrived;
      break;
    case Vote::kOr:
      barrier_.result = barrier_.votes != 0;
      break;
  }
  RaceOrderBlock();
  Shuffle();
  for (int i = 0; i < warp_count_; ++i) {
    Warp& warp = warps_[i];
    if (warp.at_barrier == 0) continue;
    warp.ready |= std::exchange(warp.at_barrier, 0);
    ready_warps_ |= 1u << i;
  }
  if (ready_warps_ != 0) warp_ = NextOf(ready_warps_, warp_order_);
}

void BlockRunner::Collective(const char* name, unsigned mask, CompleteFunction complete,
                             void* payload, Where where) {
  Warp& warp = warps_[warp_];
  const unsigned number = static_cast<unsigned>(thread_) % 32;
  const unsigned lane = 1u << number;
  if ((mask & lane) == 0) {
    Report(Bug::kMissingLanes, Text()
                                   << name << " at " << where << " by lane " << number
                                   << ", which its mask 0x" << std::hex << mask << " leaves out");
  }
  warp.calls[number] = {name, mask, complete, payload, where};
  warp.ready &= ~lane;
  warp.in_collective |= lane;
  TryComplete(&warp, warp.calls[number]);
  Wait();
}

// Completes the collective that `call` belongs to, if all its lanes have arrived.
void BlockRunner::TryComplete(Warp* warp, const Call& call) {
  const unsigned present = call.mask & warp->exists & ~warp->exited;
  if ((present & ~warp->in_collective) != 0) return;
  LaneCalls calls;
  calls.present = present;
  calls.where = call.where;
  bool same = true;
  for (unsigned rest = present; rest != 0; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    const Call& other = warp->calls[lane];
    // Lanes with another mask may first be in a collective of their own.
    if (other.mask != call.mask) return;
    same = same && other.complete == call.complete && SamePlace(other.where, call.where);
    calls.payload[lane] = other.payload;
  }
  if (!same) ReportCollectiveMismatch(*warp, call);
  if ((call.mask & warp->exited) != 0 && report_exited_) ReportExitedLanes(*warp, call);
  call.complete(calls);
  warp->in_collective &= ~present;
  warp->ready |= present;
  ready_warps_ |= 1u << (warp - warps_);
}

void BlockRunner::CheckCollectivesAfterExit(Warp* warp) {
  for (unsigned rest = warp->in_collective; rest != 0; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    if ((warp->in_collective >> lane & 1u) != 0) TryComplete(warp, warp->calls[lane]);
  }
}

void BlockRunner::GiveUp() {
  given_up_ = true;
  AbandonFiber(fiber_, &main_);
}

// What the headers call.

int SyncBlock(Vote vote, bool predicate, Where where) {
  return current->SyncBlock(vote, predicate, where);
}

void Collective(const char* name, unsigned mask, CompleteFunction complete, void* payload,
                Where where) {
  current->Collective(name, mask, complete, payload, where);
}

unsigned ActiveLanes() { return current->ActiveLanes(); }

void YieldThread() {
  if (current != nullptr) current->Yield();
}

void CompleteVote(const LaneCalls& calls) {
  unsigned ballot = 0;
  for (unsigned rest = calls.present; rest != 0; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    if (static_cast<const VoteCall*>(calls.payload[lane])->predicate) ballot |= 1u << lane;
  }
  for (unsigned rest = calls.present; rest != 0; rest &= rest - 1) {
    static_cast<VoteCall*>(calls.payload[__builtin_ctz(rest)])->ballot = ballot;
  }
}

void CompleteSyncWarp(const LaneCalls& calls) { OrderLanes(calls.present); }

void* StaticShared(SharedSite* site) { return current->shared().Static(site); }
void* DynamicShared(size_t alignment, Where where) {
  return current->shared().Dynamic(alignment, where);
}
bool IsShared(const void* p) { return current != nullptr && current->shared().Contains(p); }

}  // namespace cudasim
