// Where buckets are summed beside backward, and how long that takes.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "dist/data_parallel/bucket_sum.h"
#include "dist/data_parallel/lane.h"

namespace lockstep::dist {

// A bucket's sum, from when it was launched and the ones before it in its lane were done; or the
// end of a backward that waited for the last of them.
struct CommunicationSpan {
  using Clock = std::chrono::steady_clock;
  int64_t bucket = 0;  // -1: the wait
  int64_t lane = 0;
  int64_t bytes = 0;
  Clock::time_point begin, end;
};

// Of the last backward that communicated, on this rank. On CUDA the group's operations alone.
struct CommunicationTimes {
  double communication_ms = 0;  // while any bucket was summed
  double overlapped_ms = 0;     // while backward went on
  double exposed_ms = 0;        // how long backward waited for the rest, and for slower ranks
};

// Bucket b is summed in lane b modulo their number, by a group of the lane's own. One thread uses
// it.
class BucketLanes {
 public:
  using OnSpan = std::function<void(const CommunicationSpan&)>;

  // Collective, as is the destructor, which waits for what is under way. A null group, or one of a
  // single rank: nothing is summed. On GPUs there is one lane, for streams go on beside each other
  // as it is. `on_span` may be empty; it is told of one span at a time.
  BucketLanes(ProcessGroup* group, Device device, int64_t lanes, const BucketSum& sum,
              OnSpan on_span);
  ~BucketLanes();

  // In the first lane.
  void Submit(Lane::Job job) { lanes_[0].jobs->Submit(std::move(job)); }
  // `prepare`, then the sum of the terms. All ranks launch the same buckets in the same order.
  void Launch(int64_t bucket, std::shared_ptr<const std::string> purpose, std::vector<Tensor> terms,
              Lane::Job prepare);
  // Returns when all are summed, and ranks are in step. Throws what the first lane that failed
  // threw, when all have ended.
  CommunicationTimes Finish();
  // After an error of this rank: the others throw it; whatever went on here has ended.
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

  void Wait();
  void AbortGroups();
  void Leave() noexcept;
  CommunicationTimes Measure(const CommunicationSpan& wait);
  void Report(const CommunicationSpan& span);

  const int exceptions_;  // under way when it was made
  ProcessGroup* const group_;
  const Device device_;
  const OnSpan on_span_;
  std::mutex report_mutex_;
  std::deque<Launched> launched_;  // of the step under way
  std::vector<GroupLane> lanes_;
};

}  // namespace lockstep::dist
