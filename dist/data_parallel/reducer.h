// Sums gradients over the ranks while backward goes on.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/autograd/leaf.h"
#include "core/parameter.h"
#include "dist/data_parallel/bucket_plan.h"
#include "dist/data_parallel/bucket_sum.h"
#include "dist/data_parallel/lane.h"
#include "dist/process_group.h"

namespace lockstep::dist {

enum class GradientSum {
  kFast,     // the library's order
  kOrdered,  // the fixed order of dist/data_parallel/fixed_order.h
};

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

struct ReducerOptions {
  int64_t first_bucket_bytes = 1 << 20;  // and of the last (BucketLimits)
  int64_t bucket_bytes = 0;              // 0: DefaultBucketBytes (dist/data_parallel/bucket_plan.h)
  GradientSum sum = GradientSum::kFast;
  // On the host: how many buckets are summed at the same time, each lane by a group of its own, so
  // that messages of one use the link while another adds or waits for its thread's turn. 0: 2, or 1
  // for a hook of one's own, since that may talk to groups of its own.
  int64_t lanes = 0;
  // kOrdered: backwards of a step on each rank, the last of which communicates.
  int64_t accum = 1;
  // Instead of LibrarySum, for kFast: how a bucket is summed. Each lane has a copy.
  BucketHook hook = {};
  // Parameters for which it returns true may have no gradient, on some or all ranks, in a step
  // (mixtures of experts, layers that are skipped). Where no rank has one, it stays undefined.
  std::function<bool(const Parameter&)> conditional = {};
  // Told of each span as it ends: of buckets on their lane's thread, of the wait on the caller's;
  // one at a time.
  std::function<void(const CommunicationSpan&)> on_span = {};
};

// Data parallelism as an observer of backward: models and the engine know nothing of it. Gradients
// are written into slices of buckets, which are planned when the first backward begins, in the
// order in which its leaves will become ready (rank 0's, on every rank). Once all gradients of a
// bucket are there, and all buckets before it were launched, it is summed in a lane, bucket b in
// lane b modulo their number, while backward goes on. When backward returns, each gradient is the
// sum over all ranks: divide the loss by the global number of tokens or samples before it.
//
// The gradients of a step must be cleared (ZeroGrad) before the next. A parameter that takes no
// part in a step on some rank is an error on every rank, naming it, after all communication has
// ended: nothing hangs. If backward itself throws, the group is aborted, so that the other ranks
// throw too. Then the reducer is of no use any more, nor is the group.
//
// Gradients of bf16 and f16 parameters are f32, as the sums are. Buckets take as many bytes as the
// gradients; kOrdered log2(accum) times as many more.
class Reducer : public BackwardObserver {
 public:
  // Watches the trainable ones among the parameters, which have memory on the group's device. A
  // null group is a single rank. Nobody else calls the group, which outlives the reducer, while a
  // backward runs. Collective, as is the destructor: lanes have duplicates of the group, and a rank
  // that ends while others go on is named by them at once. Throws ArgumentError.
  Reducer(ProcessGroup* group, std::vector<std::shared_ptr<Parameter>> parameters,
          ReducerOptions options);
  ~Reducer() override;
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Backwards in its scope only add to this rank's gradients (gradient accumulation).
  class NoSync {
   public:
    explicit NoSync(Reducer& reducer) : reducer_(reducer) { ++reducer_.no_sync_; }
    ~NoSync() { --reducer_.no_sync_; }
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    Reducer& reducer_;
  };

  // Takes part in the sums of a step without a micro-batch of its own: for ranks that have run out
  // of data while others have not. Afterwards the gradients are the sums of the others.
  void Join();

  // The micro-batches of a step in the order in which this rank must compute them: micro_order()[i]
  // of accum. In kFast as they stand.
  const std::vector<int64_t>& micro_order() const { return micro_order_; }

  // Collective, after a step whose gradients are not finite: on which ranks they were not before
  // the sum, and the first such parameter of each: "rank 1 ('h.0.mlp.c_fc.weight')". Empty if
  // there is none.
  std::string LocateNonFinite();

  // In the order in which they are launched; empty before the first backward.
  std::vector<Bucket> buckets() const;
  // Names of the parameters in a bucket.
  std::vector<std::string> NamesIn(int64_t bucket) const;
  const CommunicationTimes& times() const { return times_; }
  ProcessGroup* group() const { return group_; }

  void OnBegin(const BackwardPlan& plan) override;
  void OnLeafReady(Leaf& leaf) override;
  void OnEnd() override;
  void OnError() noexcept override;

 private:
  using Clock = CommunicationSpan::Clock;
  // How a rank used a parameter in a step.
  enum Use : uint8_t { kUnused, kUsed, kJoined };

  struct BucketState {
    Bucket plan;                // its items are indices of parameters_
    std::vector<Tensor> whole;  // a bucket per buffer; the lane's
    std::vector<Tensor> local;  // the gradients within the last micro-step's bucket
    Tensor square_sums;         // of `local` before the sum, per chunk
    int64_t pending = 0;        // gradients that are not ready
    CommunicationSpan span;
    std::vector<WorkPtr> works;
    std::shared_ptr<const std::string> purpose;  // its number and parameters, for errors
  };

  // Sums one bucket after the other, beside backward.
  struct GroupLane {
    ProcessGroup* group;
    std::shared_ptr<ProcessGroup> own_group;  // null: the group is the caller's
    BucketHook sum;
    std::unique_ptr<Lane> jobs;  // last: its jobs use the others
  };

  int64_t ranks() const { return group_ ? group_->size() : 1; }
  bool ordered() const { return options_.sum == GradientSum::kOrdered; }
  bool IsConditional(size_t p) const {
    return options_.conditional && options_.conditional(*parameters_[p]);
  }
  void MakeLanes(Device device);
  void WaitForLanes();
  void AbortGroups();
  void Leave() noexcept;
  void MakePlan(const BackwardPlan& plan);
  void MakeBuckets(const std::vector<int64_t>& order);
  void CheckBegin() const;
  void CheckShares(const BackwardPlan& plan) const;
  void BeginMicroStep();
  void BeginSync();
  void FillAbsent(size_t p);
  void MarkReady(size_t p);
  void Launch(int64_t b);
  void SumBucket(BucketState& bucket, GroupLane& lane);
  std::string PurposeOf(int64_t bucket) const;
  void AddUp(BucketState& bucket);
  void FinishSync();
  void Measure(const CommunicationSpan& wait);
  void Tell(const CommunicationSpan& span);
  void ResolveUses();
  void Reset();

  const int exceptions_;  // under way when it was made
  ProcessGroup* const group_;
  std::vector<std::shared_ptr<Parameter>> parameters_;
  ReducerOptions options_;
  std::optional<FixedOrder> order_;
  std::vector<int64_t> micro_order_;
  std::unordered_map<const Leaf*, size_t> index_;  // of parameters_
  std::vector<GroupLane> lanes_;
  std::mutex telling_;  // on_span

  // From the first backward on.
  std::vector<BucketState> buckets_;
  std::vector<int64_t> bucket_of_;           // per parameter
  std::vector<std::vector<Tensor>> slices_;  // per buffer and parameter: the leaves'

  // Of the step under way.
  int no_sync_ = 0;
  int64_t micro_ = 0;   // backwards so far
  int64_t buffer_ = 0;  // that this backward writes to
  bool in_backward_ = false, sync_ = false, ended_well_ = false;
  std::vector<uint8_t> uses_;  // Use, per parameter
  std::vector<bool> in_plan_, ready_;
  int64_t next_ = 0;           // bucket to launch
  Tensor my_uses_, all_uses_;  // u8 [P], [ranks, P]
  bool joined_ = false;        // this step has no micro-batch of ours
  CommunicationTimes times_;
};

}  // namespace lockstep::dist
