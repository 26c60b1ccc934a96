// Sums buckets while backward runs, and measures how long that takes.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "dist/data_parallel/arrival_clock.h"
#include "dist/data_parallel/bucket_sum.h"
#include "dist/data_parallel/lane.h"

namespace lockstep::dist {

// The time of a bucket's sum, from when it was launched and the earlier ones in its lane were done;
// or the time that a backward's end waited for the last sums.
struct CommunicationSpan {
  using Clock = std::chrono::steady_clock;
  int64_t bucket = 0;  // -1: the wait
  int64_t lane = 0;
  int64_t bytes = 0;
  Clock::time_point begin, end;
  bool of_experts = false;  // ExpertParallel's other sum, which runs at the same time
};

// For this rank's last backward that communicated. On CUDA only the group's operations count.
struct CommunicationTimes {
  double communication_ms = 0;  // while any bucket was being summed
  double overlapped_ms = 0;     // the part of it while backward ran
  double exposed_ms = 0;        // how long backward then waited for the rest, and for slower ranks
  double arrival_ms = 0;        // ArrivalClock::ms: what shows who is slow (slow_ranks.h)
  // On the CPU: how long the others' gradients took to arrive (Work::Span::receiving), as far as
  // that was exposed.
  double receiving_ms = 0;
};

// Makes the group's other ranks throw that backward failed on this one; null: there are none.
void AbortBackward(ProcessGroup* group);

// Bucket b is summed in lane b modulo the number of lanes; each lane has its own group. For use by
// one thread.
class BucketLanes {
 public:
  using OnSpan = std::function<void(const CommunicationSpan&)>;

  // Collective, as is the destructor, which waits for pending sums. With a null group, or a single
  // rank, nothing is summed. On GPUs one lane is enough, because streams run concurrently anyway.
  // `on_span` may be empty; it is called for one span at a time.
  BucketLanes(ProcessGroup* group, Device device, int64_t lanes, const BucketSum& sum,
              OnSpan on_span);
  ~BucketLanes();

  // Runs the job in the first lane.
  void Submit(Lane::Job job) { lanes_[0].jobs->Submit(std::move(job)); }
  // Runs the job in the bucket's lane, with its group (null: a single rank) and its copy of `sum`;
  // it returns its operations, for timing. All ranks must launch the same buckets in the same
  // order.
  using BucketJob = std::function<std::vector<WorkPtr>(ProcessGroup* group, const BucketSum& sum)>;
  void Launch(int64_t bucket, int64_t bytes, BucketJob job);
  // Returns when all jobs so far are done; others may follow before Finish. Throws as Finish does.
  void Wait();
  // Returns when all buckets are summed and the ranks are in step. If a lane failed, throws the
  // first error once all lanes have ended.
  CommunicationTimes Finish();
  // After an error on this rank: makes the others throw it, and waits until nothing runs here.
  void Abort() noexcept;

 private:
  using Clock = CommunicationSpan::Clock;
  struct GroupLane {
    ProcessGroup* group;
    std::shared_ptr<ProcessGroup> own_group;  // null: the group is the caller's
    BucketSum sum;
    std::unique_ptr<Lane> jobs;  // last: its jobs use the others
  };
  struct Launched {
    CommunicationSpan span;
    std::vector<WorkPtr> works;
  };

  void AbortGroups();
  void Leave() noexcept;
  CommunicationTimes Measure(const CommunicationSpan& wait);
  void Report(const CommunicationSpan& span);

  const int exceptions_;  // in flight at construction
  ProcessGroup* const group_;
  const Device device_;
  const OnSpan on_span_;
  ArrivalClock arrival_;
  std::mutex report_mutex_;
  std::deque<Launched> launched_;  // in the current step
  std::vector<GroupLane> lanes_;
};

}  // namespace lockstep::dist
